"""Copies between strided arrays of a device, with a cast if the dtypes differ.

Equal dtypes are copied as bits. Floats are truncated to integers, and negative values wrap around
in unsigned ones, as in torch.
"""

from __future__ import annotations

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.codegen import Read, Step
from holdfast.compute.engines.opencl.elementwise.strided_kernels import (
    Chain,
    Launch,
    layout_key,
    prepare_launch,
    remember,
)
from holdfast.compute.engines.opencl.layout.views import as_bits
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import check_double, storage, working


def copy(engine: CLEngine, out: Array, value: Array) -> None:
    """Copy `value` into `out`, which has the same shape, with a cast. Raises NotHere."""
    launch = engine.plans.get(key := ("copy", layout_key(engine, out), layout_key(engine, value)))
    if launch is None:
        launch = remember(engine, key, _copy(engine, out, value))
    engine.launch(launch.kernel, launch.size, launch.group, out, value, *launch.sizes)


def _copy(engine: CLEngine, out: Array, value: Array) -> Launch:
    if value.dtype == out.dtype:  # moved as bits: no rounding, and any dtype
        out, value = as_bits(out), as_bits(value)
    wide = dtypes.FLOAT64 in (out.dtype, value.dtype)
    check_double(engine, out.dtype, value.dtype)
    kind, text = working(value.dtype), "$self"
    if kind in ("float", "double") and out.dtype.kind in "iu":
        text = "(long)$self"  # as torch does: negative values wrap around
    read, step = Read("self", storage(value.dtype), kind), Step("out", text)
    plain = text == "$self" and not wide
    chain = Chain(kind, (read,), (), (step,), ("out",), wide=plain)
    return prepare_launch(engine, chain, [out], [value])
