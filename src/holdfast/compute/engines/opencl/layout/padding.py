"""Reflection and replication padding and its gradients; indices come from the NumPy engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.compute.engines.numpy.layout import padding as host
from holdfast.compute.engines.opencl.conv.resample import axis_of, combine, pick, transpose_axis
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import register


def _pad(
    source: Callable[..., Any], engine: CLEngine, self: Array, padding: Sequence[int]
) -> Array:
    found = host.source_indices(source, self.shape, padding)
    return pick(engine, self, [index for _, index in found])


def _pad_backward(
    source: Callable[..., Any], engine: CLEngine, grad_output: Array, self: Array,
    padding: Sequence[int],
) -> Array:  # fmt: skip
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
