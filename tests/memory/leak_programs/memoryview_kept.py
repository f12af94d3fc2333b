"""A memoryview keeps its block."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
VIEWS = []


def work():
    VIEWS.append(POOL.allocate(2222).view()[10:20])  # leak: 2222


work()
# held by: a memoryview ← item 0 of list ← global 'VIEWS' (list)

LEAKS = check_memory_leaks()
