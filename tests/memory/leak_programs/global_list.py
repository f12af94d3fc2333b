"""A global list keeps what a function allocates."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []


def work():
    KEPT.append(POOL.allocate(1000))  # leak: 1000


work()
# held by: item 0 of list ← global 'KEPT' (list) of module program_global_list

LEAKS = check_memory_leaks()
