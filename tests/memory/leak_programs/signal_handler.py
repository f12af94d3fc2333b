"""A signal handler that closes over a block."""

import signal

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def install():
    block = POOL.allocate(2600)  # leak: 2600

    def handler(number, frame):
        return block.size

    return signal.signal(signal.SIGUSR1, handler)


BEFORE = install()
LEAKS = check_memory_leaks()
signal.signal(signal.SIGUSR1, BEFORE)
# held by: closure variable 'block' of function install.<locals>.handler
