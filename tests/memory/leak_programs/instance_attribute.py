"""An object that a running frame holds, and its attribute."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Model:
    def __init__(self):
        self.buffer = POOL.allocate(8000)  # leak: 8000


def main():
    model = Model()
    found = check_memory_leaks()
    assert model.buffer.size == 8000
    return found


LEAKS = main()
# held by: attribute 'buffer' of Model at
# held by: ← local 'model' (Model) of main, which runs
