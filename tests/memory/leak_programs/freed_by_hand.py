"""Freed blocks whose objects still exist."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
BLOCKS = [POOL.allocate(1000) for _ in range(5)]
for block in BLOCKS:
    POOL.deallocate(block)
ADDRESSED = [POOL.allocate(1000)]
POOL.deallocate(ADDRESSED[0].address)

LEAKS = check_memory_leaks()
