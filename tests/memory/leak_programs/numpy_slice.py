"""A slice of ten numbers keeps the whole array."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def head():
    block = POOL.allocate(80_000)  # leak: 80000
    return block.array("float64")[:10]


KEPT = [head()]
# held by: an ndarray ← item 0 of list ← global 'KEPT' (list)

LEAKS = check_memory_leaks()
