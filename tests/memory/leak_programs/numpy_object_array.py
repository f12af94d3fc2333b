"""Blocks in an array of objects, which the collector cannot look into."""

import numpy

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
TABLE = numpy.empty(3, dtype=object)
TABLE[1] = POOL.allocate(450)  # leak: 450
# held by: global 'TABLE' (ndarray) of module program_numpy_object_array

LEAKS = check_memory_leaks()
