"""`functional` for decompositions, found when it is first called.

The functions are there once the table is full, and decompositions are written while it fills.
"""

from __future__ import annotations

import importlib
from typing import Any


class _Functional:
    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module("holdfast.compute.functional"), name)
        setattr(self, name, found)  # found once
        return found


functional: Any = _Functional()
