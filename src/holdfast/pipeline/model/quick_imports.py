"""Import diffusers and transformers without torch's compiler and SciPy's statistics.

They take a quarter of the time of all imports. The libraries mark functions for the compiler, which
does nothing in a run, and need the statistics for the schedules of few models.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Sequence
from functools import cache
from typing import Any


def quick_imports() -> None:
    """Import these modules only when something in them is used, from now on.

    For programs of our own, before torch is imported; does nothing afterwards. Marks such as
    "do not trace this" are lost, so a program that compiles models should not call this.
    """
    if "torch" in sys.modules:
        return
    # Both libraries ask at import which package each module belongs to: every file is read.
    importlib.metadata.packages_distributions = cache(importlib.metadata.packages_distributions)
    for name in _PRESENT:
        if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None:
            sys.modules[name] = _StandIn(name)


class _StandIn(types.ModuleType):
    """Stands for a package until something is used that is not in `_PRESENT`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self._finder = _Finder(self)
        sys.meta_path.insert(0, self._finder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        present = _PRESENT[self.__name__]
        return present[name] if name in present else getattr(self.make_way(), name)

    def make_way(self) -> types.ModuleType:
        """Import the package itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            sys.meta_path.remove(self._finder)
            package, _, child = self.__name__.rpartition(".")
            vars(sys.modules[package]).pop(child, None)
        return importlib.import_module(self.__name__)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules of a package that something stands for."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = self._stand_in.__name__
        if not fullname.startswith(f"{name}."):
            return None
        if fullname in _ALONE:
            package, _, child = name.rpartition(".")
            folders = [f"{folder}/{child}" for folder in sys.modules[package].__path__]
            return importlib.machinery.PathFinder.find_spec(fullname, folders)
        self._stand_in.make_way()
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return importlib.import_module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


class _Compiled:
    """Stands for the class of compiled modules, of which there are none."""


def _leave_unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    return _leave_unmarked if function is None else function


_MARKS = ("allow_in_graph", "assume_constant_result", "disable", "disallow_in_graph")
# By package: what the libraries ask of it although it does nothing in a run.
_PRESENT: dict[str, dict[str, Any]] = {
    "torch._dynamo": {
        **dict.fromkeys(_MARKS, _leave_unmarked),
        "eval_frame": types.SimpleNamespace(OptimizedModule=_Compiled),
    },
    "scipy.stats": {},
}
# Modules that can be imported without their package.
_ALONE = ("torch._dynamo._trace_wrapped_higher_order_op",)
