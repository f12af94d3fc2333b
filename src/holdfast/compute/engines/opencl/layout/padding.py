"""Padding kernels and their gradients: constant, reflection and replication.

Circular padding is composed of slices elsewhere. Source indices come from the NumPy engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.compute.engines.numpy.layout import padding as host
from holdfast.compute.engines.opencl.conv.resample import axis_of, combine, pick, transpose_axis
from holdfast.compute.engines.opencl.layout.views import fill, slice_dim
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register
from holdfast.compute.ops.layout.padding import padded_shape, sides


@kernel("constant_pad_nd")
def constant_pad(engine: CLEngine, self: Array, pad: Sequence[int], value: Any = 0) -> Array:
    out = engine.alloc(padded_shape(self.shape, pad), self.dtype)
    source, target = self, out
    for dim, (before, after) in enumerate(sides(pad, self.ndim)):
        size = self.shape[dim]
        first, kept = max(0, before), size + min(0, before) + min(0, after)
        if kept < 0:
            raise ValueError(f"{(before, after)} cuts off more than the {size} elements there are")
        # Fill the slabs around the inner part, so that each element is written once.
        for slab in (slice(0, first), slice(first + kept, out.shape[dim])):
            if slab.stop > slab.start and target.size:
                fill(engine, slice_dim(target, dim, slab), value)
        source = slice_dim(source, dim, slice(max(0, -before), max(0, -before) + kept))
        target = slice_dim(target, dim, slice(first, first + kept))
    engine.write(target, source)
    return out


def _pad(
    source: Callable[..., Any], engine: CLEngine, self: Array, padding: Sequence[int]
) -> Array:
    found = host.source_indices(source, self.shape, padding)
    return pick(engine, self, [index for _, index in found])


def _pad_backward(
    source: Callable[..., Any], engine: CLEngine, grad_output: Array, self: Array,
    padding: Sequence[int],
) -> Array:  # fmt: skip
    if grad_output.shape != padded_shape(self.shape, padding):
        raise ValueError(
            f"the gradient {list(grad_output.shape)} is not of the padded shape "
            f"{list(padded_shape(self.shape, padding))}"
        )
    found = host.source_indices(source, self.shape, padding)
    axes = [transpose_axis(axis_of(index[:, None]), self.shape[axis]) for axis, index in found]
    return combine(engine, grad_output, axes)


for _kind, _source in (
    ("reflection", host.reflect_indices),
    ("replication", host.replicate_indices),
):
    for _dims in (1, 2, 3):
        register(f"{_kind}_pad{_dims}d", functools.partial(_pad, _source))
        register(f"{_kind}_pad{_dims}d_backward", functools.partial(_pad_backward, _source))
