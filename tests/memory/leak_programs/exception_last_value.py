"""What Python at a prompt does with the last error."""

import sys

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work():
    scratch = POOL.allocate(1600)  # leak: 1600
    raise ValueError(scratch.size)


try:
    work()
except ValueError as error:
    sys.last_value = error
# held by: ← global 'last_value' (ValueError) of module sys
# held by others: module sys was there before
LEAKS = check_memory_leaks()
del sys.last_value
