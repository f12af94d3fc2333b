"""Eight threads, of which every second leaks."""

import threading

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
LOCK, KEPT = threading.Lock(), []


def work(number):
    for _ in range(10):
        block = POOL.allocate(512)  # leak: 512 x 40
        if number % 2:
            with LOCK:
                KEPT.append(block)


threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

LEAKS = check_memory_leaks()
