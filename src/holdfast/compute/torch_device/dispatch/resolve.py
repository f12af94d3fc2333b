"""Which op of the table computes a torch overload, and in which form."""

from __future__ import annotations

import functools
from typing import Any

import torch

from holdfast.compute.ops import OPS, PACKETS
from holdfast.compute.ops.table import Op

# Not in the table's schemas: an engine has one layout, a tensor knows its device.
DROPPED = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "generator", "non_blocking")
)
FUNCTIONAL, IN_PLACE, OUT = "functional", "in place", "out"


def name_of(overload: Any) -> str:
    """The name of a torch overload in the table."""
    schema = overload._schema
    base = schema.name.removeprefix("aten::")
    return f"{base}.{schema.overload_name}" if schema.overload_name else base


@functools.cache
def counterpart(overload: Any) -> tuple[Op | None, str]:
    """The op of the table that computes a torch overload, and which form of it that is."""
    name = name_of(overload)
    if name in OPS:
        return OPS[name], FUNCTIONAL
    schema = overload._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written:
        return None, ""
    base = schema.name.removeprefix("aten::")
    out = any(a.is_out for a in written)
    if not out and base.endswith("_"):
        base = base[:-1]
    kinds = [str(a.type) for a in schema.arguments if not (a.is_out or a.name in DROPPED)]
    for op in (*PACKETS.get(base, []), *PACKETS.get(f"{base}_functional", [])):
        packet = getattr(torch.ops.aten, op.schema.base)
        other = getattr(packet, op.schema.overload or "default", None)
        if other is None:
            continue
        theirs = [str(a.type) for a in other._schema.arguments if a.name not in DROPPED]
        if theirs == kinds:
            return op, OUT if out else IN_PLACE
    return None, ""
