"""A context that was run and dropped."""

import contextvars

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
CURRENT = contextvars.ContextVar("current")


def work():
    CURRENT.set(POOL.allocate(1700))


contextvars.copy_context().run(work)

LEAKS = check_memory_leaks()
