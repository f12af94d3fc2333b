"""A closure remembers a block."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def outer():
    block = POOL.allocate(900)  # leak: 900

    def inner():
        return block.size

    return inner


KEPT = outer()
# held by: closure variable 'block' of function outer.<locals>.inner

LEAKS = check_memory_leaks()
