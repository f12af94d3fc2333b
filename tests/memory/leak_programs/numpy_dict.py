"""Arrays in a dict, by name."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def load():
    names = ("weight", "bias")
    return {name: POOL.allocate(4000).array("float32") for name in names}  # leak: 4000 x 2


STATE = load()
# held by: an ndarray ← key 'weight' of dict ← global 'STATE' (dict)

LEAKS = check_memory_leaks()
