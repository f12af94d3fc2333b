"""Copying numbers between arrays of a device, from format to format.

Covers: any strides; formats that the device computes with, and any two that are the same.
Leaves to others: which copies an op needs, what the device cannot copy (the engine).
Promise: numbers of one format are copied as bits, whatever they mean; fractions are cut off and
what is below 0 wraps around where whole numbers are wanted, as in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.elementwise import Chain, Launch, layout, prepared, remember
from holdfast.compute.engines.opencl.kernels import storage, working
from holdfast.compute.engines.opencl.texts import Read, Step
from holdfast.compute.engines.opencl.views import bits

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


def copy(engine: OpenCLEngine, out: Array, value: Array) -> None:
    """Copy numbers of the same shape into `out`, in its format. Raises NotHere."""
    launch = engine.plans.get(key := ("copy", layout(engine, out), layout(engine, value)))
    if launch is None:
        launch = remember(engine, key, _copy(engine, out, value))
    engine.launch(launch.kernel, launch.size, launch.group, out, value, *launch.sizes)


def _copy(engine: OpenCLEngine, out: Array, value: Array) -> Launch:
    if value.dtype == out.dtype:  # moved as bits: nothing is rounded, or need be understood
        out, value = bits(out), bits(value)
    wide = formats.FLOAT64 in (out.dtype, value.dtype)
    if wide and not engine.has_double:
        raise NotHere("no float64 on this device")
    kind, text = working(value.dtype), "$self"
    if kind in ("float", "double") and out.dtype.kind in "iu":
        text = "(long)$self"  # as torch does it: what is below 0 wraps around
    read, step = Read("self", storage(value.dtype), kind), Step("out", text)
    plain = text == "$self" and not wide
    chain = Chain(kind, (read,), (), (step,), ("out",), wide=plain)
    return prepared(engine, chain, [out], [value])
