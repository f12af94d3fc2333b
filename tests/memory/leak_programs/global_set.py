"""Blocks in a set."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
SEEN = set()


def note():
    SEEN.add(POOL.allocate(700))  # leak: 700 x 2


note()
note()
# held by: global 'SEEN' (set) of module program_global_set

LEAKS = check_memory_leaks()
