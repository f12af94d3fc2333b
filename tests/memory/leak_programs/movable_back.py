"""A handle that came back from disk: the line that fetched it is named."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = [POOL.allocate_movable(5000)]
KEPT[0].spill()
with KEPT[0] as block:  # leak: 5000
    block.view()[0] = 1
del block

LEAKS = check_memory_leaks()
