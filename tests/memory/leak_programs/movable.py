"""Handles: one in a list, one spilled to disk, one by name, one freed."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = [POOL.allocate_movable(3000)]  # leak: 3000
SPILLED = [POOL.allocate_movable(5000)]
assert SPILLED[0].spill() == 5000
named = POOL.allocate_movable(6000)
FREED = [POOL.allocate_movable(7000)]
FREED[0].free()
# held by: attribute '_block' of Movable at
# held by: ← item 0 of list ← global 'KEPT' (list)
LEAKS = check_memory_leaks()
SPILLED[0].free()
