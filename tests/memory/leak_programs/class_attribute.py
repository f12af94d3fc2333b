"""A class collects what its instances make."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Layer:
    made = []  # noqa: RUF012
    last = None

    def __init__(self):
        Layer.last = POOL.allocate(1234)  # leak: 1234
        self.made.append(POOL.allocate(555))  # leak: 555 x 2


Layer()
Layer()
# held by: attribute 'last' of class Layer
# held by: item 0 of list ← attribute 'made' of class Layer

LEAKS = check_memory_leaks()
