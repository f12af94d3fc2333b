"""Being there when a module is imported, when a thread starts, and after Python's end.

Covers: a call after somebody imports a module, a call at the start of new threads, objects that
never go away.
Promise: nothing is imported from here; `stop` puts things back as they were, or leaves a later
hook of somebody else in place and does nothing itself any more.
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
    """Calls `then` once: at `start` where module `name` is there, else when it was imported."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then
        self._on = False

    def start(self) -> None:
        """Begin to look."""
        self._on = True
        module = sys.modules.get(self._name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._call()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Look no more."""
        self._on = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """What the other finders find, with a call put behind its loading."""
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


_before_watch: list[Callable[[], object]] = []


def before_watch(call: Callable[[], object]) -> None:
    """Have `call` end threads that wait for work, before arrays are watched.

    Only threads that start meanwhile are watched; those that are needed again will.
    """
    _before_watch.append(call)


def prepare_watch() -> None:
    """Call what `before_watch` was given."""
    for call in _before_watch:
        call()


_at_watch: list[Callable[[], object]] = []


def at_watch(call: Callable[[], object]) -> None:
    """Have `call` run each time that blocks of the pools begin or cease to be watched."""
    _at_watch.append(call)


def tell_watch() -> None:
    """Call what `at_watch` was given."""
    for call in _at_watch:
        call()


class InThreads:
    """Calls `first` in every thread that is started meanwhile, before anything else runs there.

    Threads made by `threading` alone; those of C libraries are none of Python's.
    """

    def __init__(self, first: Callable[[], object]) -> None:
        self._first = first
        self._on = False
        self._before: Any = None
        self._ours: Any = None

    def start(self) -> None:
        """Begin."""
        self._on = True
        self._before = before = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self._on:
                self._call_first(thread)
            before(thread)

        self._ours = start
        self._put(start)

    def stop(self) -> None:
        """Threads start as they did."""
        self._on = False
        if threading.Thread.start is self._ours:
            self._put(self._before)

    def _put(self, start: Any) -> None:
        threading.Thread.start = start

    def _call_first(self, thread: threading.Thread) -> None:
        run = thread.run

        def first_and_run() -> None:
            del thread.__dict__["run"]  # back to the method, and no cycle is left
            if self._on:
                self._first()
            run()

        thread.__dict__["run"] = first_and_run


def keep_for_ever(kept: object) -> None:
    """Have `kept` outlive the interpreter: foreign code holds its address.

    A list of this module would not do. It is emptied when Python ends, and arrays and tensors may
    go after that.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
