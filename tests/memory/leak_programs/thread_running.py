"""A thread that still runs holds its block by name."""

import threading

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
READY, DONE = threading.Event(), threading.Event()
KEPT = []


def work():
    block = POOL.allocate(2500)
    KEPT.append(POOL.allocate(10))  # leak: 10
    READY.set()
    DONE.wait()
    del block


thread = threading.Thread(target=work)
thread.start()
READY.wait()
LEAKS = check_memory_leaks()
DONE.set()
thread.join()
