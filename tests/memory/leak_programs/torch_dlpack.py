"""Through DLPack into NumPy and back; the array in a list keeps the block."""

import numpy
import torch

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work():
    block = POOL.allocate(9000)  # leak: 9000
    return numpy.from_dlpack(torch.from_dlpack(block))


KEPT = [work()]
named = torch.from_dlpack(POOL.allocate(1000))
# held by: an ndarray ← item 0 of list ← global 'KEPT' (list)

LEAKS = check_memory_leaks()
