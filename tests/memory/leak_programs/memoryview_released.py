"""One that was released keeps nothing."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
VIEWS = []


def work():
    view = POOL.allocate(2222).view()
    VIEWS.append(view)
    view.release()


work()

LEAKS = check_memory_leaks()
