"""An argument of a partial."""

import functools

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def use(block):
    return block.size


JOBS = [functools.partial(use, POOL.allocate(777))]  # leak: 777
# held by: argument of partial(use) ← item 0 of list ← global 'JOBS' (list)

LEAKS = check_memory_leaks()
