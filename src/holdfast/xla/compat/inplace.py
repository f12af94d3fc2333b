"""In-place operations that torchax lacks, or loses on views.

torchax computes the result, then writes it into the tensor or the view. It lists fifty by hand;
others (addcmul_, cumsum_, round_) are decomposed, and their writes into a view are silently lost.
All have the same form, so they are listed here by their schemas.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch


@functools.cache
def missing() -> Mapping[Any, Any]:
    """Operators in place that torchax has no entry for, and what does them."""
    from torchax.ops import op_base, ops_registry

    known = ops_registry.all_aten_ops
    return {
        packet: ops_registry.Operator(
            packet, op_base.InplaceOp(functional), False, False, False, True
        )
        for packet, functional in _pairs()
        if packet not in known and not any(getattr(packet, o) in known for o in packet.overloads())
    }


def _pairs() -> list[tuple[Any, Any]]:
    """Every aten operator that writes into its first argument, with the one that only computes."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    found: list[tuple[Any, Any]] = []
    for name in sorted(names):
        short = name.removeprefix("aten::")
        if short == name or not short.endswith("_") or short.endswith("__"):
            continue
        if f"aten::{short[:-1]}" not in names or short.startswith("_"):
            continue
        packet = getattr(torch.ops.aten, short)
        if all(_writes_first(getattr(packet, one)) for one in packet.overloads()):
            found.append((packet, getattr(torch.ops.aten, short[:-1])))
    return found


def _writes_first(overload: Any) -> bool:
    """Into its first argument, whose shape stays."""
    if torch.Tag.inplace_view in overload.tags or not overload._schema.arguments:
        return False
    written = overload._schema.arguments[0].alias_info
    return written is not None and written.is_write
