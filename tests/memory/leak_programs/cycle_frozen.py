"""A cycle that the collector was told to leave alone."""

import gc

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Node:
    def __init__(self):
        self.me = self
        self.data = POOL.allocate(1010)  # leak: 1010


Node()
gc.freeze()
LEAKS = check_memory_leaks()
gc.unfreeze()
gc.collect()
