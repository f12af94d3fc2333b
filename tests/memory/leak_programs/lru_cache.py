"""A cache around a function."""

import functools

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


@functools.lru_cache(maxsize=2)
def table(n):
    return POOL.allocate(n)  # leak: 2000, 3000


for size in (1000, 2000, 3000):
    table(size)
# held by: cache of function table

LEAKS = check_memory_leaks()
