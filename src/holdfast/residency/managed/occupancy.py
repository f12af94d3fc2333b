"""Which thread is inside of a managed module: in a call of it, or of one of its layers alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from holdfast.base.errors import InUse


class Occupancy:
    """At most one thread is inside at a time, because layers share the memory of one ring."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.door = threading.RLock()  # for entering and for evicting the module
        self.thread: int | None = None  # where the module ran last
        self.entered: int | None = None  # the thread inside
        self._token: Any = None  # a lock that the call inside holds for as long as it runs
        self._layer: tuple[nn.Module, contextlib.ExitStack] | None = None  # called by itself

    @property
    def is_layer_alone(self) -> bool:
        """Whether a layer was called from outside of the module."""
        return self._layer is not None

    def is_inside(self) -> bool:
        """Whether the call that entered is still running; Ctrl-C may have skipped its exit code."""
        if self.entered is None:
            return False
        if self._layer is not None and _is_called(self._layer[0], self.entered):
            return True
        return self._token is not None and self._token.locked()

    def is_mine(self) -> bool:
        """Whether this thread entered."""
        return self.entered == threading.get_ident()

    def is_inside_here(self) -> bool:
        """Whether a call is running in this thread."""
        return self.is_mine() and self.is_inside()

    def enter(self, token: Any, clean_up: Callable[[], None]) -> None:
        """Let this thread in while `token` is locked, after `clean_up` if needed. Raises InUse."""
        with self.door:
            if self.is_inside():
                raise InUse(
                    f"cannot run {self._name}: another thread is running it",
                    expected="one pass at a time, as its layers share the memory of one ring",
                    hint="run them one after the other, or as one with residency.together",
                )
            if self.entered is not None:
                clean_up()
            self.entered = self.thread = threading.get_ident()
            self._token = token

    def leave(self, token: Any) -> bool:
        """End the call that holds `token`; False if it never entered."""
        if self._token is not token:
            return False
        self.entered = self._token = None
        return True

    def enter_layer(self, path: str, layer: nn.Module) -> contextlib.ExitStack:
        """Let this thread into one layer; `leave_layer` closes the stack. Raises InUse."""
        with self.door:
            if self.is_inside():
                raise InUse(
                    f"cannot run {path} of {self._name}: another thread is running that",
                    expected="one pass at a time, as its layers share the memory of one ring",
                    hint="run them one after the other",
                )
            if self._layer is not None:  # Ctrl-C skipped its exit code
                self._layer[1].close()
            stack = contextlib.ExitStack()
            self._layer = (layer, stack)
            self.entered = self.thread = threading.get_ident()
        return stack

    def leave_layer(self) -> None:
        """End the layer that was called by itself."""
        if self._layer is not None:
            _, stack = self._layer
            self._layer = self.entered = None
            stack.close()


def _is_called(layer: nn.Module, thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    try:
        while frame is not None:
            if frame.f_code in _CALLS and frame.f_locals.get("self") is layer:
                return True
            frame = frame.f_back
    finally:
        del frame  # a frame that refers to itself keeps everything on the stack alive
    return False


_CALLS = (nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__)
