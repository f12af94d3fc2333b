"""Describes who keeps a model alive: variables of running code and other referrers."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from holdfast.memory.debug import referrers


def who_keeps(thing: Any) -> list[str]:
    """Who refers to `thing`, the nearest first, without variables of this package."""
    ours = __name__.rpartition(".")[0]
    running = {
        id(value): _describe(name, value, frame)
        for name, value, frame in referrers.running_variables()
        if not str(frame.f_globals.get("__name__")).startswith(ours)
    }
    own = running.pop(id(thing), None)  # else the search would end there
    found = referrers.who_refers([thing], lambda address: None, running)[id(thing)]
    if own is None:
        return found
    return [own, *(words for words in found if words != referrers.NOBODY)]


def _describe(name: str, value: Any, frame: FrameType) -> str:
    kind = type(value).__name__
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return f"global {name!r} ({kind}) of module {frame.f_globals.get('__name__')}"
    return f"local {name!r} ({kind}) of {frame.f_code.co_qualname}, which runs"
