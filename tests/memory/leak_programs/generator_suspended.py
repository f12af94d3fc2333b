"""A generator that is never finished."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def numbers():
    scratch = POOL.allocate(1200)  # leak: 1200
    yield 1
    yield scratch.size


WAITING = numbers()
next(WAITING)
# held by: local 'scratch' of suspended generator numbers

LEAKS = check_memory_leaks()
