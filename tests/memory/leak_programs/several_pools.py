"""Two pools, one of which is gone while its block is there."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []


def work():
    other = MemoryPool("cpu")
    KEPT.append(other.allocate(1111))  # leak: 1111
    KEPT.append(POOL.allocate(2222))  # leak: 2222
    other.allocate(3333)


work()

LEAKS = check_memory_leaks()
