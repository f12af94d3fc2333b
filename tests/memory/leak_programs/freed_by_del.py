"""Blocks whose last reference went."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work():
    block = POOL.allocate(1000)
    other = block
    del block
    return other.size


BLOCKS = [POOL.allocate(n) for n in range(10)]
BLOCKS.clear()
work()

LEAKS = check_memory_leaks()
