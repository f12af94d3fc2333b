"""Blocks from before a mark are no leaks."""

from holdfast.memory import MemoryPool, check_memory_leaks, mark

POOL = MemoryPool("cpu")
KEPT = [POOL.allocate(1000)]
mark()
KEPT.append(POOL.allocate(2000))  # leak: 2000

LEAKS = check_memory_leaks()
