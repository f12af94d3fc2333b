"""The same, emptied."""

import functools

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


@functools.cache
def table(n):
    return POOL.allocate(n)


table(1000)
table(2000)
table.cache_clear()

LEAKS = check_memory_leaks()
