"""A check inside a running generator: its variables count."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def numbers():
    scratch = POOL.allocate(1200)
    yield check_memory_leaks()
    yield scratch.size


RUNNING = numbers()
LEAKS = next(RUNNING)
