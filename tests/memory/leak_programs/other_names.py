"""The same block in two places is one leak, with both in the words."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
FIRST, SECOND = [], {}


def work():
    block = POOL.allocate(1000)  # leak: 1000
    FIRST.append(block)
    SECOND["it"] = block


work()
# held by: item 0 of list ← global 'FIRST' (list)
# held by: key 'it' of dict ← global 'SECOND' (dict)

LEAKS = check_memory_leaks()
