"""A copy of the slice keeps nothing."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def head():
    block = POOL.allocate(80_000)
    return block.array("float64")[:10].copy()


KEPT = [head()]

LEAKS = check_memory_leaks()
