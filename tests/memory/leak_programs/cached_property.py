"""A property that is computed once."""

import functools

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Model:
    @functools.cached_property
    def table(self):
        return POOL.allocate(5000)  # leak: 5000


MODELS = {"a": Model()}
MODELS["a"].table  # noqa: B018
# held by: attribute 'table' of Model at
# held by: ← key 'a' of dict ← global 'MODELS' (dict)

LEAKS = check_memory_leaks()
