"""One that was closed, one that ended, one that never began."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def numbers(block):
    scratch = POOL.allocate(1200)
    yield block.size
    yield scratch.size


def main():
    closed, ended = numbers(POOL.allocate(10)), numbers(POOL.allocate(20))
    next(closed)
    closed.close()
    list(ended)
    return [closed, ended]


KEPT = main()

LEAKS = check_memory_leaks()
