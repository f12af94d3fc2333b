"""Blocks from after debugging was off are not known."""

from holdfast.memory import MemoryPool, check_memory_leaks, enable_memory_debugging

POOL = MemoryPool("cpu")
KEPT = [POOL.allocate(1000)]  # leak: 1000
enable_memory_debugging(False)
KEPT.append(POOL.allocate(2000))

LEAKS = check_memory_leaks()
