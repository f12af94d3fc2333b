"""Running functions hold blocks by name, all the way down."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def outer():
    mine = POOL.allocate(1000)
    return middle(POOL.allocate(500)), mine.size


def middle(given):
    def closes_over():
        return given.size

    return inner(), closes_over()


def inner(*, scratch=None):
    scratch = scratch or POOL.allocate(30)
    return check_memory_leaks(), scratch.size


LEAKS = outer()[0][0][0]
