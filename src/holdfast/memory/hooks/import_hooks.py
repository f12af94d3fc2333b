"""Callbacks after an import, at the start of threads, and when watching of blocks begins or ends.

Nothing is imported from here. `stop` undoes a hook; if another hook was installed on top since, it
leaves that in place and only stops acting.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` once: in `start` if module `name` is imported already, else after its import."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then
        self._on = False

    def start(self) -> None:
        self._on = True
        module = sys.modules.get(self._name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._call()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._on = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec that the other finders find, with a call added after its loading."""
        if fullname != self._name or not self._on:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            self._call()

        loader.exec_module = exec_module

    def _call(self) -> None:
        if self._on:
            self.stop()
            self._then()


class _Callbacks(list[Callable[[], object]]):
    def call_all(self) -> None:
        for call in self:
            call()


# Callbacks that end idle worker threads before arrays are watched: only threads that start while
# they are watched are watched too.
_before = _Callbacks()
before_watch, prepare_watch = _before.append, _before.call_all
# Callbacks for each time that watching the blocks of pools begins or ends.
_at = _Callbacks()
at_watch, notify_watch = _at.append, _at.call_all


class InThreads:
    """Calls `first` in every thread that starts from `start` to `stop`, before its own code.

    Only threads made by `threading`, not those of C libraries.
    """

    def __init__(self, first: Callable[[], object]) -> None:
        self._first = first
        self._on = False
        self._before: Any = None
        self._ours: Any = None

    def start(self) -> None:
        self._on = True
        self._before = before = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self._on:
                self._call_first(thread)
            before(thread)

        self._ours = start
        self._put(start)

    def stop(self) -> None:
        self._on = False
        if threading.Thread.start is self._ours:
            self._put(self._before)

    def _put(self, start: Any) -> None:
        threading.Thread.start = start

    def _call_first(self, thread: threading.Thread) -> None:
        run = thread.run

        def first_and_run() -> None:
            del thread.__dict__["run"]  # back to the method, without a reference cycle
            if self._on:
                self._first()
            run()

        thread.__dict__["run"] = first_and_run


def keep_forever(kept: object) -> None:
    """Keep an object alive past the end of the interpreter: foreign code holds its address.

    A module-level list is not enough: it is cleared when Python ends, and arrays and tensors may
    be freed after that.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
