"""An exception that was handled and dropped."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def work():
    scratch = POOL.allocate(1500)
    raise ValueError(scratch.size)


def run():
    try:
        work()
    except ValueError:
        return


run()

LEAKS = check_memory_leaks()
