"""A value of this thread alone."""

import threading

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
LOCAL = threading.local()


def work():
    LOCAL.scratch = POOL.allocate(1800)  # leak: 1800


work()
# held by: key 'scratch' of dict
# held by: global 'LOCAL' (_local) of module program_thread_local

LEAKS = check_memory_leaks()
