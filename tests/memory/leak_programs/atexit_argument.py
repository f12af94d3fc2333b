"""An argument that waits for the end of the program."""

import atexit

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def goodbye(block):
    return block.size


atexit.register(goodbye, POOL.allocate(2700))  # leak: 2700
LEAKS = check_memory_leaks()
atexit.unregister(goodbye)
