"""How each overload of torch is computed on the device: the table behind `holdfast device ops`.

Covers: every overload that the device answers for, its form, its way, the op behind it.
Leaves to others: showing it (the command), what ran in this process (`engine.fallbacks`).
Promise: computes nothing, and says of an engine what resolution would do with it. What torch takes
apart before it asks a device has no row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.compute.engine import ENGINES, Engine
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device import fallback, registering, resolve, selecting

NATIVE, DECOMPOSITION, FALLBACK = "native", "decomposition", "fallback"
WAYS = (NATIVE, DECOMPOSITION, FALLBACK)
# Forms besides those of an op: sizes and strides alone; a function of the device's own.
VIEW, SPECIAL = "view", "special"


class Row(NamedTuple):
    """One overload of ATen."""

    name: str  # "add_.Tensor"
    form: str  # "functional", "in place", "out", "view" or "special"; "" where no op is behind it
    way: str  # one of WAYS
    op: str | None  # of the table: "add.Tensor"


def coverage(engine: str | None = None) -> list[Row]:
    """A row for every overload that the device answers for, by name.

    `engine` is one of `ENGINES`; the one that was chosen when not given. Raises NotFound.
    """
    chosen = ENGINES[engine or selecting.engine()]
    special = registering.specials()
    found = []
    for name in registering.overload_names():
        overload = registering.overload_of(name)
        if name in special:
            found.append(Row(name, SPECIAL, NATIVE, None))
        elif overload is not None:
            found.append(_row(name, overload, chosen))
    return found


def _row(name: str, overload: Any, engine: Engine) -> Row:
    if registering.about_sizes(overload):
        return Row(name, VIEW, NATIVE, None)
    op, form = resolve.counterpart(overload)
    if op is not None:
        return Row(name, form, _way(op, engine), op.name)
    writes = any(a.is_out for a in overload._schema.arguments)
    apart = None if writes else fallback.decomposition(overload)
    return Row(name, form, FALLBACK if apart is None else DECOMPOSITION, None)


def _way(op: Op, engine: Engine) -> str:
    if op.name in engine.kernels:
        return NATIVE
    return FALLBACK if op.decomposition is None else DECOMPOSITION


def counts(rows: list[Row]) -> dict[str, int]:
    """How many rows go each way."""
    return {way: sum(row.way == way for row in rows) for way in WAYS}
