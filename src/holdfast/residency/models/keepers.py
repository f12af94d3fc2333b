"""Who keeps a model alive, in words.

Covers: variables of running code and what refers to the model, by way of memory.referrers.
Leaves to others: when to ask, as the whole heap is read (loaded).
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from holdfast.memory import referrers


def who_keeps(thing: Any) -> list[str]:
    """Who refers to `thing`, the nearest first; variables of this layer's own code left out."""
    ours = __name__.rpartition(".")[0]
    running = {
        id(value): _words(name, value, frame)
        for name, value, frame in referrers.running_variables()
        if not str(frame.f_globals.get("__name__")).startswith(ours)
    }
    own = running.pop(id(thing), None)  # or the search would end with it
    found = referrers.who_refers([thing], lambda address: None, running)[id(thing)]
    if own is None:
        return found
    return [own, *(words for words in found if words != referrers.NOBODY)]


def _words(name: str, value: Any, frame: FrameType) -> str:
    kind = type(value).__name__
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return f"global {name!r} ({kind}) of module {frame.f_globals.get('__name__')}"
    return f"local {name!r} ({kind}) of {frame.f_code.co_qualname}, which runs"
