"""A default argument is made once and stays."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work(scratch=POOL.allocate(640)):  # noqa: B008 # leak: 640
    return scratch.size


def other(*, scratch=POOL.allocate(641)):  # noqa: B008 # leak: 641
    return scratch.size


# held by: default argument 'scratch' of function work
# held by: default argument 'scratch' of function other

LEAKS = check_memory_leaks()
