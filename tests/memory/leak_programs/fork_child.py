"""What a child leaks is not the parent's; each finds its own."""

import json
import os
import warnings

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []
KEPT.append(POOL.allocate(100))  # leak: 100

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
    reading, writing = os.pipe()
    child = os.fork()
if not child:
    KEPT.append(POOL.allocate(200))
    found = sorted(leak.size for leak in check_memory_leaks())
    os.write(writing, json.dumps(found).encode())
    os._exit(0)
os.close(writing)
os.waitpid(child, 0)
assert json.loads(os.read(reading, 1000)) == [100, 200]
os.close(reading)

LEAKS = check_memory_leaks()
