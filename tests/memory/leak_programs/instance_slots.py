"""The same with slots."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Model:
    __slots__ = ("buffer", "name")

    def __init__(self):
        self.buffer = POOL.allocate(8000)  # leak: 8000


MODELS = [Model()]
# held by: attribute 'buffer' of Model at
# held by: ← item 0 of list ← global 'MODELS' (list) of module program_instance_slots

LEAKS = check_memory_leaks()
