"""Activations, softmax and normalization by the C loops, for float32.

Covers: what they take (`native/rows.c`), how work is shared out over threads.
Leaves to others: checking arguments, every other format, small arrays (the kernels that ask).
Promise: None, or False, where the loops do not fit; then nothing has been written.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import compiled, threads
from holdfast.compute import dtype as formats

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
LEAST = 1000  # numbers; below, a call into C costs more than it saves
_NARROWEST = 8  # numbers of a row of a channel; below, NumPy goes over all rows at once
_WORTH = 1 << 15  # numbers for a thread; below, waking another costs more than it saves

SIGNATURES: compiled.Signatures = {
    "holdfast_each": (None, (_INT, *[_POINTER] * 3, _INT)),
    "holdfast_softmax": (None, (*[_POINTER] * 2, *[_INT] * 3)),
    "holdfast_softmax_backward": (None, (*[_POINTER] * 3, *[_INT] * 3)),
    "holdfast_layer_norm": (None, (*[_POINTER] * 6, *[_INT] * 2, ctypes.c_double)),
    "holdfast_layer_norm_backward": (None, (*[_POINTER] * 7, *[_INT] * 2, _POINTER)),
    "holdfast_group_norm": (None, (*[_POINTER] * 6, *[_INT] * 5, ctypes.c_double)),
    "holdfast_moments": (None, (*[_POINTER] * 3, *[_INT] * 2)),
    "holdfast_scaled": (None, (*[_POINTER] * 4, *[_INT] * 2)),
    "holdfast_slopes": (None, (*[_POINTER] * 5, *[_INT] * 2)),
    "holdfast_bent": (None, (*[_POINTER] * 7, *[_INT] * 2)),
}
CODES = {
    "sigmoid": 0,
    "silu": 1,
    "gauss": 2,
    "gelu": 3,
    "gelu_tanh": 4,
    "erf": 5,
    "silu_backward": 6,
    "gelu_backward": 7,
    "gelu_tanh_backward": 8,
    "sigmoid_backward": 9,
}


@functools.cache
def loops() -> Any:
    """The loops of rows.c, or None where they cannot be had."""
    return compiled.load("rows.c", SIGNATURES)


def _fit(*arrays: Any) -> bool:
    """Whether these are large arrays of float32, of one shape."""
    first = arrays[0]
    if first.size < LEAST or loops() is None:
        return False
    return all(
        a.dtype == formats.FLOAT32 and a.shape == first.shape and a.flags.aligned for a in arrays
    )


def _parameters(width: int, *parameters: Any) -> bool:
    """Whether these can be read along a row of so many numbers."""
    return all(
        p is None or (p.dtype == formats.FLOAT32 and p.size == width and p.flags.aligned)
        for p in parameters
    )


def _flat(array: Any) -> Any:
    return None if array is None else numpy.ascontiguousarray(array)


def _share(work: Callable[[int, int], object], count: int, width: int) -> None:
    """Call `work(start, stop)` for all of `count` rows of so many numbers."""
    parts = min(count * width // _WORTH, count, 4 * threads.get_num_threads())
    if parts < 2 or threads.get_num_threads() == 1:
        work(0, count)
        return

    def block(number: int) -> None:
        work(count * number // parts, count * (number + 1) // parts)

    threads.share_out(block, parts)


def _at(array: Any, place: int) -> int | None:
    """The address of a number, or of a row."""
    return None if array is None else array.ctypes.data + place * array.strides[0]


# ---- single numbers


def into(name: str, out: Any, x: Any) -> bool:
    """A function of every number of a block, into `out`, which may be `x`."""
    if not _fit(x, out):
        return False
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return False
    at = x.ctypes.data
    loops().holdfast_each(CODES[name], at, at, out.ctypes.data, x.size)
    return True


def each(name: str, *arrays: Any) -> Any:
    """A function of every number, or a gradient and a number; None where it does not fit."""
    if not _fit(*arrays):
        return None
    made = numpy.empty(arrays[0].shape, formats.FLOAT32)
    flat = [numpy.ascontiguousarray(a) for a in arrays]
    call, code, to = loops().holdfast_each, CODES[name], made.ctypes.data
    x = flat[0].ctypes.data
    y = flat[1].ctypes.data if len(flat) > 1 else x

    def work(start: int, stop: int) -> None:
        call(code, x + 4 * start, y + 4 * start, to + 4 * start, stop - start)

    _share(work, made.size, 1)
    return made


# ---- softmax


def softmax(x: Any, dim: int, logarithm: bool = False) -> Any:
    """Along the last axis; None where it does not fit."""
    if not _last(dim, x) or not _fit(x):
        return None
    made = numpy.empty(x.shape, formats.FLOAT32)
    rows, to = (a.reshape(-1, x.shape[-1]) for a in (_flat(x), made))
    call, width = loops().holdfast_softmax, rows.shape[1]

    def work(start: int, stop: int) -> None:
        call(_at(rows, start), _at(to, start), stop - start, width, logarithm)

    _share(work, *rows.shape)
    return made


def softmax_backward(grad: Any, out: Any, dim: int, kind: Any, logarithm: bool = False) -> Any:
    """Along the last axis; None where it does not fit."""
    if not _last(dim, grad) or kind != formats.FLOAT32 or not _fit(grad, out):
        return None
    made = numpy.empty(grad.shape, formats.FLOAT32)
    arrays = [a.reshape(-1, grad.shape[-1]) for a in (_flat(grad), _flat(out), made)]
    call, width = loops().holdfast_softmax_backward, grad.shape[-1]

    def work(start: int, stop: int) -> None:
        call(*(_at(a, start) for a in arrays), stop - start, width, logarithm)

    _share(work, *arrays[0].shape)
    return made


def _last(dim: int, array: Any) -> bool:
    return dim in (-1, array.ndim - 1)


# ---- layer norm


def layer_norm(rows: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Normalized rows, their means and 1 / deviations; None where it does not fit."""
    if not _fit(rows) or not _parameters(rows.shape[1], weight, bias):
        return None
    rows, weight, bias = _flat(rows), _flat(weight), _flat(bias)
    made, (count, width) = numpy.empty(rows.shape, formats.FLOAT32), rows.shape
    mean, scale = (numpy.empty(count, formats.FLOAT32) for _ in range(2))
    call, factors = loops().holdfast_layer_norm, (_at(weight, 0), _at(bias, 0))

    def work(start: int, stop: int) -> None:
        written = (_at(a, start) for a in (made, mean, scale))
        call(_at(rows, start), *factors, *written, stop - start, width, eps)

    _share(work, count, width)
    return made, mean, scale


def layer_norm_backward(
    grads: Any, rows: Any, mean: Any, rstd: Any, weight: Any, wanted: bool
) -> Any:
    """Gradients of rows, if wanted, of weight and of bias; None where it does not fit."""
    count, width = rows.shape
    if width < 2 or not _fit(rows, grads) or not _parameters(width, weight):
        return None
    if not _parameters(count, mean, rstd):
        return None
    arrays = [_flat(a) for a in (grads, rows, mean, rstd)]
    weight = _flat(weight)
    made = numpy.empty(rows.shape, formats.FLOAT32) if wanted else None
    found: list[Any] = []

    def work(start: int, stop: int) -> None:
        sums, scratch = numpy.zeros((2, width)), numpy.empty(3 * width + 64, numpy.float32)
        loops().holdfast_layer_norm_backward(
            *(_at(a, start) for a in arrays), _at(weight, 0), _at(made, start), _at(sums, 0),
            stop - start, width, _at(scratch, 0),
        )  # fmt: skip
        found.append((start, sums))

    _share(work, count, width)
    # In their order, so that threads that end sooner or later do not change the last bits.
    return made, *numpy.sum([sums for _, sums in sorted(found, key=lambda one: one[0])], axis=0)


# ---- rows with one factor each: channels


def fit_channels(*arrays: Any) -> bool:
    """Whether these matrices are for the functions below."""
    return arrays[0].shape[-1] >= _NARROWEST and _fit(*arrays)


def group_norm(rows: Any, weight: Any, bias: Any, groups: int, positions: int, eps: float) -> Any:
    """Normalized rows, each a group of channels, as `layer_norm`; None where it does not fit."""
    if positions < _NARROWEST or not _fit(rows):
        return None
    (count, width), each = rows.shape, rows.shape[1] // positions
    if not _parameters(groups * each, weight, bias):
        return None
    rows, weight, bias = _flat(rows), _flat(weight), _flat(bias)
    made = numpy.empty(rows.shape, formats.FLOAT32)
    mean, scale = (numpy.empty(count, formats.FLOAT32) for _ in range(2))
    factors = (_at(weight, 0), _at(bias, 0))

    def work(start: int, stop: int) -> None:
        written = (_at(a, start) for a in (made, mean, scale))
        loops().holdfast_group_norm(
            _at(rows, start), *factors, *written, stop - start, positions, start, groups, each, eps
        )

    _share(work, count, width)
    return made, mean, scale


def moments(rows: Any) -> tuple[Any, Any]:
    """Of each row: the mean, and the sum of squared distances from it, in float64."""
    mean, squares = (numpy.empty(rows.shape[0]) for _ in range(2))
    _run(loops().holdfast_moments, (_flat(rows), mean, squares), rows.shape)
    return mean, squares


def scaled(rows: Any, scale: Any, shift: Any) -> Any:
    """rows * scale + shift."""
    made = numpy.empty(rows.shape, formats.FLOAT32)
    _run(loops().holdfast_scaled, (_flat(rows), *_columns(rows, scale, shift), made), rows.shape)
    return made


def slopes(grads: Any, rows: Any, mean: Any) -> tuple[Any, Any]:
    """Of each row: the sum of gradients, and of gradients times the distance from the mean."""
    added, along = (numpy.empty(rows.shape[0]) for _ in range(2))
    arrays = (_flat(grads), _flat(rows), *_columns(rows, mean), added, along)
    _run(loops().holdfast_slopes, arrays, rows.shape)
    return added, along


def bent(grads: Any, rows: Any, mean: Any, scale: Any, bend: Any, less: Any) -> Any:
    """grads * scale - (rows - mean) * bend - less."""
    made = numpy.empty(rows.shape, formats.FLOAT32)
    columns = _columns(rows, mean, scale, bend, less)
    _run(loops().holdfast_bent, (_flat(grads), _flat(rows), *columns, made), rows.shape)
    return made


def _columns(rows: Any, *columns: Any) -> list[Any]:
    """A number for each row: those of all channels repeat with every sample."""
    count = rows.shape[0]
    made = [numpy.ascontiguousarray(c, formats.FLOAT32).reshape(-1) for c in columns]
    return [c if c.size == count else numpy.tile(c, count // c.size) for c in made]


def _run(call: Any, arrays: Any, shape: tuple[int, int]) -> None:
    count, width = shape

    def work(start: int, stop: int) -> None:
        call(*(_at(a, start) for a in arrays), stop - start, width)

    _share(work, count, width)
