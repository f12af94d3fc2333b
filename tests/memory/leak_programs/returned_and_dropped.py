"""Blocks that were returned, passed on and dropped."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def make(n):
    return POOL.allocate(n)


def use(block):
    return block.array("uint8").sum() >= 0


assert all(use(make(n)) for n in (10, 1000, 100_000))

LEAKS = check_memory_leaks()
