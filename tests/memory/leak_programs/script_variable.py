"""A script holds blocks by name at its top level while it runs."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
block = POOL.allocate(1000)
array = POOL.allocate(4000).array("float32")
view = POOL.allocate(50).view()


def work():
    global inside
    inside = POOL.allocate(60)
    return check_memory_leaks()


LEAKS = work()
