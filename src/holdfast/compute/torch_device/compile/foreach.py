"""`torch._foreach_*`, which optimizers call for all tensors at once, as one op for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PREFIX = "_foreach_"
_WITH_VALUE = ("addcdiv", "addcmul")  # their last argument is given by name
_LISTS = ("List[Tensor]", "List[number]")


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the functional overloads whose op has the same name without `_foreach_`."""
    found: dict[Any, Callable[..., Any]] = {}
    names = torch._C._dispatch_get_all_op_names()
    aten = {n.removeprefix("aten::").partition(".")[0] for n in names if n[:6] == "aten::"}
    for name in sorted(aten):
        if not name.startswith(_PREFIX) or name.endswith("_"):
            continue
        packet = getattr(torch.ops.aten, name)
        one = getattr(torch, name.removeprefix(_PREFIX), None)
        for overload in (getattr(packet, o) for o in packet.overloads()):
            if one is not None and _fits(overload):
                found[overload] = _decompose(overload, one)
    return found


def _fits(overload: Any) -> bool:
    schema = overload._schema
    if schema.is_mutable or schema.name.removeprefix("aten::") == f"{_PREFIX}norm":
        return False
    base = schema.name.removeprefix(f"aten::{_PREFIX}")
    scalars = str(schema.arguments[-1].type) == "Tensor"
    return not (base in _WITH_VALUE and scalars)


def _decompose(overload: Any, one: Callable[..., Any]) -> Callable[..., Any]:
    listed = [str(a.type) in _LISTS for a in overload._schema.arguments]
    named = overload._schema.name.removeprefix(f"aten::{_PREFIX}") in _WITH_VALUE

    def apart(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        count = next(len(a) for a, many in zip(args, listed, strict=False) if many)
        made = []
        for index in range(count):
            picked = [a[index] if many else a for a, many in zip(args, listed, strict=False)]
            value = {"value": picked.pop()} if named and len(picked) > 3 else {}
            made.append(one(*picked, **value, **kwargs))
        return made

    return apart
