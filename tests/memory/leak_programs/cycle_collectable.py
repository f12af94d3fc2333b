"""A cycle with the collector off: the check collects it."""

import gc

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Node:
    def __init__(self):
        self.me = self
        self.data = POOL.allocate(1000)


gc.disable()
for _ in range(5):
    Node()

LEAKS = check_memory_leaks()
