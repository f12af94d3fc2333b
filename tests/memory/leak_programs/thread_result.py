"""A thread that has ended left its result in a global."""

import threading

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
RESULTS = {}


def work(name):
    scratch = POOL.allocate(100)
    RESULTS[name] = POOL.allocate(2500)  # leak: 2500 x 2
    del scratch


threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
# held by: key 'b' of dict ← global 'RESULTS' (dict)

LEAKS = check_memory_leaks()
