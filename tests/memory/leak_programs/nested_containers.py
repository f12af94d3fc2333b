"""A tuple in a dict in a list in a dict."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
STATE = {"layers": [{"weights": ("w", POOL.allocate(2048))}]}  # leak: 2048
# held by: item 1 of tuple ← key 'weights' of dict ← item 0 of list ← key 'layers' of dict

LEAKS = check_memory_leaks()
