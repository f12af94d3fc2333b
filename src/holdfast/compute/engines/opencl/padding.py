"""Kernels: padding and its backward ops.

Covers: constants, reflections and copies of the edge, over 1 to 3 dimensions.
Leaves to others: going round, which is made of slices; which number goes where (the NumPy engine).
Promise: every number of a result is written once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.compute.engines.numpy import padding as host
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.kernels import kernel, register
from holdfast.compute.engines.opencl.resample import adjoint, axis_of, combined, picks
from holdfast.compute.engines.opencl.views import cut, fill
from holdfast.compute.ops.padding import padded_shape, sides

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine


@kernel("constant_pad_nd")
def constant_pad(engine: OpenCLEngine, self: Array, pad: Sequence[int], value: Any = 0) -> Array:
    out = engine.alloc(padded_shape(self.shape, pad), self.dtype)
    source, target = self, out
    for dim, (before, after) in enumerate(sides(pad, self.ndim)):
        size = self.shape[dim]
        first, kept = max(0, before), size + min(0, before) + min(0, after)
        if kept < 0:
            raise ValueError(f"{(before, after)} cuts off more than the {size} numbers there are")
        # Slabs around what is inside: each number is written once.
        for slab in (slice(0, first), slice(first + kept, out.shape[dim])):
            if slab.stop > slab.start and target.size:
                fill(engine, cut(target, dim, slab), value)
        source = cut(source, dim, slice(max(0, -before), max(0, -before) + kept))
        target = cut(target, dim, slice(first, first + kept))
    engine.write(target, source)
    return out


def _pad(
    source: Callable[..., Any], engine: OpenCLEngine, self: Array, padding: Sequence[int]
) -> Array:
    found = host.origins(source, self.shape, padding)
    return picks(engine, self, [index for _, index in found])


def _pad_backward(
    source: Callable[..., Any], engine: OpenCLEngine, grad_output: Array, self: Array,
    padding: Sequence[int],
) -> Array:  # fmt: skip
    if grad_output.shape != padded_shape(self.shape, padding):
        raise ValueError(
            f"the gradient {list(grad_output.shape)} is not of the padded shape "
            f"{list(padded_shape(self.shape, padding))}"
        )
    found = host.origins(source, self.shape, padding)
    axes = [adjoint(axis_of(index[:, None]), self.shape[axis]) for axis, index in found]
    return combined(engine, grad_output, axes)


for _kind, _source in (("reflection", host.reflected), ("replication", host.repeated)):
    for _dims in (1, 2, 3):
        register(f"{_kind}_pad{_dims}d", functools.partial(_pad, _source))
        register(f"{_kind}_pad{_dims}d_backward", functools.partial(_pad_backward, _source))
