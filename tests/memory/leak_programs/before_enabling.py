"""Blocks from before debugging was on are no leaks."""

from holdfast.memory import MemoryPool, check_memory_leaks, enable_memory_debugging

POOL = MemoryPool("cpu")
enable_memory_debugging(False)
KEPT = [POOL.allocate(1000)]
enable_memory_debugging(True)
KEPT.append(POOL.allocate(2000))  # leak: 2000

LEAKS = check_memory_leaks()
