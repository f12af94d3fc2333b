"""A function that calls itself and keeps one block for each level."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []


def down(n):
    scratch = POOL.allocate(100 * n)
    if n == 1:
        KEPT.append(POOL.allocate(64))  # leak: 64
    if n > 0:
        down(n - 1)
    KEPT.append(POOL.allocate(7))  # leak: 7 x 6
    return scratch.size


down(5)

LEAKS = check_memory_leaks()
