"""Whether a state fits a module, and the error where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput


class Keys(NamedTuple):
    """What `load_state_dict(strict=False)` passed over."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def compared(module: str, own: Mapping[str, Any], given: Mapping[str, Any], strict: bool) -> Keys:
    """Names that only one of the two has.

    Raises BadInput for those, if `strict`, and for every shape that differs.
    """
    keys = Keys([n for n in own if n not in given], [n for n in given if n not in own])
    wrong = [
        f"{name} is {list(given[name].shape)}, not {list(own[name].shape)}"
        for name in own
        if name in given and tuple(given[name].shape) != tuple(own[name].shape)
    ]
    if wrong or (strict and any(keys)):
        raise _unfit(module, keys if strict else Keys([], []), wrong)
    return keys


def _unfit(module: str, keys: Keys, wrong: list[str]) -> BadInput:
    lists = {
        "missing": keys.missing_keys,
        "unexpected": keys.unexpected_keys,
        "of another shape": wrong,
    }
    text = "; ".join(f"{what}: {', '.join(names)}" for what, names in lists.items() if names)
    return BadInput(
        f"the state does not fit {module}: {text}",
        expected="the names and shapes of its state_dict()",
        hint=None if wrong else "load_state_dict(state, strict=False), which passes over them",
    )
