"""A dict that is never emptied."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
CACHE = {}


def load(key):
    if key not in CACHE:
        CACHE[key] = POOL.allocate(4096)  # leak: 4096 x 3
    return CACHE[key]


for name in ("a", "b", "a", "c"):
    load(name)
del name
# held by: key 'a' of dict ← global 'CACHE' (dict) of module program_global_dict_cache

LEAKS = check_memory_leaks()
