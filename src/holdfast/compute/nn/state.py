"""Whether a state fits a module, and the error where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.nn.convert import to_host
from holdfast.compute.schema import described
from holdfast.compute.tensors import CustomTensor


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
        f"{name} is {_sizes(given[name])}, not {list(own[name].shape)}"
        for name in own
        if name in given and _sizes(given[name]) != list(own[name].shape)
    ]
    if wrong or (strict and any(keys)):
        raise _unfit(module, keys if strict else Keys([], []), wrong)
    return keys


def _sizes(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else list(shape)


def readable(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Pairs of a tensor and what can be copied into it.

    Raises BadInput for values that are no numbers, or would lose their imaginary part.
    """
    found = []
    for name in own:
        if name in given:
            value = given[name]
            value = value if isinstance(value, CustomTensor) else to_host(value)
            _check_format(name, value, own[name])
            found.append((own[name], value))
    return found


def _check_format(name: str, value: Any, own: Any) -> None:
    numbers = value.dtype.kind not in "OSUMm"
    if not numbers or (formats.is_complex(value.dtype) and not formats.is_complex(own.dtype)):
        raise BadInput(
            f"{name} of the state is {described(value)}, which does not fit {described(own)}",
            expected="real numbers" if numbers else "numbers",
        )


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
