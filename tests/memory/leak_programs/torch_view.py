"""A view of a torch tensor keeps all of it."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def head():
    return POOL.allocate(80_000).tensor("float32")[5:10]  # leak: 80000


KEPT = {"head": head()}
# held by: a Tensor ← key 'head' of dict ← global 'KEPT' (dict)

LEAKS = check_memory_leaks()
