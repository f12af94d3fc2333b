"""A deque of the last two: those are still there."""

from collections import deque

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
RECENT = deque(maxlen=2)
for n in range(10):
    RECENT.append(POOL.allocate(1000 + n))  # leak: 1008, 1009
# held by: item 1 of deque ← global 'RECENT' (deque)

LEAKS = check_memory_leaks()
