"""A leak carries the tag it was made under."""

from holdfast.memory import MemoryPool, check_memory_leaks, tag

POOL = MemoryPool("cpu")
KEPT = []
with tag("vae"), tag("decoder"):
    KEPT.append(POOL.allocate(1000))  # leak: 1000
LEAKS = check_memory_leaks()
assert [leak.tag for leak in LEAKS] == ["vae/decoder"]
