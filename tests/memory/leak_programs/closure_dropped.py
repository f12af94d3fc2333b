"""A closure that is gone."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def outer():
    block = POOL.allocate(900)
    return lambda: block.size


def use():
    return outer()()


assert use() == 900

LEAKS = check_memory_leaks()
