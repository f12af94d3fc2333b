"""SciPy, imported on first use by the kernels that need it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from holdfast.base.errors import MissingDependency


@functools.cache
def submodule(name: str) -> Any:
    """The module `scipy.<name>`. Raises MissingDependency."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError as exc:
        raise MissingDependency(
            f"this computation on the CPU needs scipy.{name}, and SciPy is not installed",
            expected="the package scipy",
            hint="pip install 'holdfast[compute]'",
        ) from exc
