"""A leak at an address that was used before: the later line is named."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []


def early():
    return POOL.allocate(1 << 27).address


def late():
    KEPT.append(POOL.allocate(1 << 27))  # leak: 134217728


before = early()
late()
assert KEPT[0].address == before

LEAKS = check_memory_leaks()
