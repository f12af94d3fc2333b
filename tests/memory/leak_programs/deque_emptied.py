"""A deque that was worked off."""

from collections import deque

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
QUEUE = deque()
for n in range(10):
    QUEUE.append(POOL.allocate(1000 + n))
while QUEUE:
    QUEUE.popleft()

LEAKS = check_memory_leaks()
