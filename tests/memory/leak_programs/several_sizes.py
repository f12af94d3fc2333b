"""Several sizes from one line, some of them kept."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []
for size in (1, 512, 513, 100_000, 3_000_000):
    block = POOL.allocate(size)  # leak: 512, 100000
    if size % 2 == 0 and size < 1_000_000:
        KEPT.append(block)
del block

LEAKS = check_memory_leaks()
