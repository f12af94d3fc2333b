"""An exception keeps the variables of the frames that it went through."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
ERRORS = []


def work():
    scratch = POOL.allocate(1500)  # leak: 1500
    raise ValueError(scratch.size)


try:
    work()
except ValueError as error:
    ERRORS.append(error)
# held by: local 'scratch' of work, which has ended ← a traceback
# held by: ← item 0 of list ← global 'ERRORS' (list)

LEAKS = check_memory_leaks()
