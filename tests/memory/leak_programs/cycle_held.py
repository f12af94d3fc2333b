"""A cycle that something holds."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Node:
    def __init__(self):
        self.other = None
        self.data = POOL.allocate(1000)  # leak: 1000 x 2


def pair():
    first, second = Node(), Node()
    first.other, second.other = second, first
    return [first]


HEAD = pair()
# held by: attribute 'data' of Node at

LEAKS = check_memory_leaks()
