"""A loop that forgets every other block."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []
for n in range(21):
    block = POOL.allocate(2000)  # leak: 2000 x 10
    if n % 2:
        KEPT.append(block)
del block

LEAKS = check_memory_leaks()
