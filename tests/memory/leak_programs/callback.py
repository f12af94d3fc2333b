"""A callback that was registered and not taken back."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Signal:
    def __init__(self):
        self.listeners = []


CHANGED = Signal()


class View:
    def __init__(self):
        self.pixels = POOL.allocate(3333)  # leak: 3333
        CHANGED.listeners.append(self.changed)

    def changed(self):
        pass


View()
# held by: attribute 'pixels' of View at
# held by: ← bound method View.changed ← item 0 of list ← attribute 'listeners' of Signal at

LEAKS = check_memory_leaks()
