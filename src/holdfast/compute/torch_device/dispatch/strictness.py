"""Makes a backward pass as strict as the code that called it.

torch computes the gradients of a device in a thread of its own, and takes the objects along that
were stashed in the calling thread. The setting is the presence of a key, so that the C++ shim can
read it without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute import engine

_C: Any = torch._C  # untyped: the stubs lack these names
STRICT, LENIENT = "holdfast.strict", "holdfast.lenient"
_on_use: list[Callable[[], object]] = []


class _Stashed:
    """`engine._mode` of a thread, which torch copies into its backward threads."""

    @property
    def strict(self) -> bool | None:
        if _C._is_key_in_tls(STRICT):
            return True
        return False if _C._is_key_in_tls(LENIENT) else None

    @strict.setter
    def strict(self, on: bool | None) -> None:
        for call in _on_use:
            call()
        for key, wanted in ((STRICT, on is True), (LENIENT, on is False)):
            if wanted:
                _C._stash_obj_in_tls(key, on)
            elif _C._is_key_in_tls(key):
                _C._remove_obj_from_tls(key)


def on_use(call: Callable[[], object]) -> None:
    """Have `call` called when strictness is set for a thread; now, if it is set already."""
    _on_use.append(call)
    if engine._mode.strict is not None:
        call()


def install() -> None:
    """Keep the state of `engine.strict` in torch's thread-local storage."""
    before = engine._mode.strict
    engine._mode = _Stashed()
    if before is not None:
        engine._mode.strict = before
