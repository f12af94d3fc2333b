"""A default list that grows with each call."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work(seen=[]):  # noqa: B006
    seen.append(POOL.allocate(128))  # leak: 128 x 3


for _ in range(3):
    work()
# held by: item 2 of list ← default argument 'seen' of function work

LEAKS = check_memory_leaks()
