"""Checks of a state_dict against a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.nn.convert import to_host
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Keys(NamedTuple):
    """What `load_state_dict(strict=False)` ignored."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def compare_keys(
    module: str, own: Mapping[str, Any], given: Mapping[str, Any], strict: bool
) -> Keys:
    """The keys that only one of the two has.

    Raises BadInput for these if `strict`, and for every shape that differs.
    """
    keys = Keys([n for n in own if n not in given], [n for n in given if n not in own])
    wrong = [
        f"{name} is {_sizes(given[name])}, not {list(own[name].shape)}"
        for name in own
        if name in given and _sizes(given[name]) != list(own[name].shape)
    ]
    if wrong or (strict and any(keys)):
        raise _state_error(module, keys if strict else Keys([], []), wrong)
    return keys


def _sizes(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else list(shape)


def match_tensors(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Pairs of a tensor and the value to copy into it.

    Raises BadInput for values that are not numeric, or would lose their imaginary part.
    """
    found = []
    for name, mine in own.items():
        if name not in given:
            continue
        value = given[name]
        value = value if isinstance(value, CustomTensor) else to_host(value)
        numbers = value.dtype.kind not in "OSUMm"
        if not numbers or (dtypes.is_complex(value.dtype) and not dtypes.is_complex(mine.dtype)):
            raise BadInput(
                f"{name} of the state is {describe(value)}, which does not fit {describe(mine)}",
                expected="real numbers" if numbers else "numbers",
            )
        found.append((mine, value))
    return found


def _state_error(module: str, keys: Keys, wrong: list[str]) -> BadInput:
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
