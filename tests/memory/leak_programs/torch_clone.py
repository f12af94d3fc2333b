"""A clone keeps nothing."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def head():
    return POOL.allocate(80_000).tensor("float32")[5:10].clone()


KEPT = {"head": head()}

LEAKS = check_memory_leaks()
