"""A chain of nodes, each with a block."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Node:
    def __init__(self, after):
        self.after = after
        self.data = POOL.allocate(256)  # leak: 256 x 20


def chain():
    head = None
    for _ in range(20):
        head = Node(head)
    return head


HEAD = [chain()]
# held by: attribute 'data' of Node at

LEAKS = check_memory_leaks()
