"""Ops that create arrays, made of the few functions in which engines differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.layout.arrays import strided
from holdfast.compute.ops.layout import shapes

Make = Callable[[Any, Any], Any]  # (shape, dtype): an array


def factory_kernels(
    zeros: Make, ones: Make, empty: Make, full: Callable[[Any, Any, Any], Any],
    arange: Callable[[Any, Any, Any, Any], Any], eye: Callable[[int, int, Any], Any],
) -> dict[str, Callable[..., Any]]:  # fmt: skip
    """Kernels by op name, for an engine with these functions.

    `full` takes shape, value and dtype; `arange` start, end, step and a dtype or None; `eye` rows,
    columns and a dtype.
    """
    f32, kind_of, sizes = dtypes.FLOAT32, dtypes.dtype_or, shapes.sizes

    def empty_strided(size: Any, stride: Any, dtype: Any = None) -> Any:
        wanted, steps, kind = sizes(size), shapes.as_list(stride), kind_of(dtype, f32)
        count = 1 + sum((n - 1) * s for n, s in zip(wanted, steps, strict=True))
        made = empty((max(count, 1),), kind)
        view = numpy.lib.stride_tricks.as_strided if isinstance(made, numpy.ndarray) else strided
        return view(made, wanted, [s * kind.itemsize for s in steps])

    def empty_permuted(size: Any, physical_layout: Any, dtype: Any = None) -> Any:
        wanted = sizes(size)
        order = shapes.order(len(wanted), physical_layout)
        made = empty(tuple(wanted[d] for d in order), kind_of(dtype, f32))
        return made.transpose([order.index(d) for d in range(len(order))])

    found: dict[str, Callable[..., Any]] = {
        "full": lambda size, fill_value, dtype=None: full(
            sizes(size), fill_value, kind_of(dtype, dtypes.of_scalar(fill_value))
        ),
        "full_like": lambda self, fill_value, dtype=None: full(
            self.shape, fill_value, kind_of(dtype, self.dtype)
        ),
        "new_full": lambda self, size, fill_value, dtype=None: full(
            sizes(size), fill_value, kind_of(dtype, self.dtype)
        ),
        "scalar_tensor": lambda s, dtype=None: full((), s, kind_of(dtype, f32)),
        "fill.Scalar": lambda self, value: full(self.shape, value, self.dtype),
        "zero": lambda self: zeros(self.shape, self.dtype),
        "empty_strided": empty_strided,
        "new_empty_strided": lambda self, size, stride, dtype=None: empty_strided(
            size, stride, kind_of(dtype, self.dtype)
        ),
        "empty_permuted": empty_permuted,
        "arange": lambda end, dtype=None: arange(0, end, 1, dtype),
        "arange.start": lambda start, end, dtype=None: arange(start, end, 1, dtype),
        "arange.start_step": lambda start, end, step=1, dtype=None: arange(start, end, step, dtype),
        "eye": lambda n, dtype=None: eye(n, n, kind_of(dtype, f32)),
        "eye.m": lambda n, m, dtype=None: eye(n, m, kind_of(dtype, f32)),
    }
    for name, overload, make in (
        ("zeros", "", zeros),
        ("ones", "", ones),
        ("empty", ".memory_format", empty),
    ):
        found[f"{name}{overload}"] = lambda size, dtype=None, make=make: make(
            sizes(size), kind_of(dtype, f32)
        )
        found[f"{name}_like"] = lambda self, dtype=None, make=make: make(
            self.shape, kind_of(dtype, self.dtype)
        )
        found[f"new_{name}"] = lambda self, size, dtype=None, make=make: make(
            sizes(size), kind_of(dtype, self.dtype)
        )
    return found
