"""How each ATen overload is computed on the device: the table behind `holdfast device ops`.

Computes nothing. Overloads that torch decomposes before it asks a device have no row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.compute.engine import ENGINES, Engine
from holdfast.compute.torch_device import registration
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.dispatch import fallback, resolve

NATIVE, DECOMPOSITION, FALLBACK = "native", "decomposition", "fallback"
WAYS = (NATIVE, DECOMPOSITION, FALLBACK)
# Forms besides those of an op: sizes and strides alone; an override.
VIEW, SPECIAL = "view", "special"


class Row(NamedTuple):
    """One overload of ATen."""

    name: str  # "add_.Tensor"
    form: str  # "functional", "in place", "out", "view" or "special"; "" without an op
    way: str  # one of WAYS
    op: str | None  # of the table: "add.Tensor"


def coverage(engine: str | None = None) -> list[Row]:
    """A row for every overload that the device computes, by name.

    `engine` is one of `ENGINES`, by default the chosen one. Raises NotFound.
    """
    chosen = ENGINES[engine or engine_choice.engine()]
    special = registration.specials()
    found = []
    for name in registration.overload_names():
        overload = registration.overload_of(name)
        if name in special:
            found.append(Row(name, SPECIAL, NATIVE, None))
        elif overload is not None:
            found.append(_row(name, overload, chosen))
    return found


def _row(name: str, overload: Any, engine: Engine) -> Row:
    if registration.is_metadata_only(overload):
        return Row(name, VIEW, NATIVE, None)
    op, form = resolve.counterpart(overload)
    if op is not None and op.name in engine.kernels:
        return Row(name, form, NATIVE, op.name)
    if op is not None:
        apart = op.decomposition
    else:
        writes = any(a.is_out for a in overload._schema.arguments)
        apart = None if writes else fallback.decomposition(overload)
    way = FALLBACK if apart is None else DECOMPOSITION
    return Row(name, form, way, op.name if op is not None else None)


def counts(rows: list[Row]) -> dict[str, int]:
    """The number of rows by way."""
    return {way: sum(row.way == way for row in rows) for way in WAYS}
