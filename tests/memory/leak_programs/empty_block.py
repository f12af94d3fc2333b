"""A block of no bytes is a block."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = [POOL.allocate(0)]  # leak: 0
# held by: item 0 of list ← global 'KEPT' (list)

LEAKS = check_memory_leaks()
