"""Blocks whose pages are locked."""

from holdfast.memory import CPUMemoryPool, check_memory_leaks

POOL = CPUMemoryPool()
KEPT = []


def work():
    KEPT.append(POOL.allocate_pinned(4096))  # leak: 4096
    POOL.allocate_pinned(8192)


work()

LEAKS = check_memory_leaks()
