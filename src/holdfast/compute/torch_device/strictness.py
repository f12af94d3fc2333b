"""Being strict in the threads in which torch computes gradients.

Covers: where `engine.strict` keeps its answer once torch is here.
Promise: a backward pass is as strict as the code that asked for it; nothing else changes.

torch computes the gradients of a device in a thread of its own, and takes the objects along that
were stashed in the thread that asked. An answer is the presence of a key, so that the C++ shim can
read it without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute import engine

_C: Any = torch._C  # what its stubs do not mention
STRICT, LENIENT = "holdfast.strict", "holdfast.lenient"
_on_use: list[Callable[[], object]] = []


class _Stashed:
    """What `engine._mode` is for one thread, with the threads that compute for it."""

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


def when_used(call: Callable[[], object]) -> None:
    """Have it called when somebody says for a thread how strict it is, or has said so already."""
    _on_use.append(call)
    if engine._mode.strict is not None:
        call()


def install() -> None:
    """Let `engine.strict` keep its answer with torch."""
    before = engine._mode.strict
    engine._mode = _Stashed()
    if before is not None:
        engine._mode.strict = before
