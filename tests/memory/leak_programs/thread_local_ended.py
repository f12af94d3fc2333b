"""Values of a thread that has ended go with it."""

import threading

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
LOCAL = threading.local()


def work():
    LOCAL.scratch = POOL.allocate(1800)


thread = threading.Thread(target=work)
thread.start()
thread.join()

LEAKS = check_memory_leaks()
