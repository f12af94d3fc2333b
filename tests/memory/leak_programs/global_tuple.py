"""A tuple of blocks, which the collector does not list."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def make():
    return (POOL.allocate(300), POOL.allocate(600))  # leak: 300, 600


PAIR = make()
# held by: item 1 of tuple ← global 'PAIR' (tuple) of module program_global_tuple

LEAKS = check_memory_leaks()
