"""A decorator with a cache of its own."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def remember(function):
    results = {}

    def wrapper(n):
        if n not in results:
            results[n] = function(n)
        return results[n]

    return wrapper


@remember
def make(n):
    return POOL.allocate(n)  # leak: 111, 222


make(111)
make(222)
make(111)
# held by: key 222 of dict ← closure variable 'results' of function remember.<locals>.wrapper

LEAKS = check_memory_leaks()
