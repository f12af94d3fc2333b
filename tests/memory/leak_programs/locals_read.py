"""A check leaves nothing behind in the frames that it reads."""

import weakref

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def main():
    block = POOL.allocate(1000)
    assert not check_memory_leaks()
    seen = weakref.ref(block)
    del block
    assert seen() is None
    return check_memory_leaks()


LEAKS = main()
