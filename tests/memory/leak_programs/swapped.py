"""A variable that is bound to another block again and again."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def main():
    before = POOL.allocate(1000)
    for _ in range(10):
        after = POOL.allocate(1000)
        before, after = after, before
    return check_memory_leaks(), before.size, after.size


LEAKS = main()[0]
