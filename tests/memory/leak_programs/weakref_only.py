"""Weak references hold nothing."""

import weakref

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work():
    block = POOL.allocate(1000)
    return weakref.ref(block)


CACHE = weakref.WeakValueDictionary()
CACHE["a"] = POOL.allocate(2000)
DEAD = [work()]
assert DEAD[0]() is None

LEAKS = check_memory_leaks()
