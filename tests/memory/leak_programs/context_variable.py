"""A context variable."""

import contextvars

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
CURRENT = contextvars.ContextVar("current")


def work():
    CURRENT.set(POOL.allocate(1700))  # leak: 1700


work()
# held by: context variable 'current'
LEAKS = check_memory_leaks()
CURRENT.set(None)
