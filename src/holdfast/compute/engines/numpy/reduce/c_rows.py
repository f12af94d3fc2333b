"""C loops (`native/rows.c`) for activations, softmax and normalization, on all threads.

For large float32 arrays. Where they do not fit, functions return None or False and write nothing;
the kernels that call them have checked the arguments and fall back to NumPy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import c_kernels, threads

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
LEAST = 1000  # elements; for fewer, a call into C costs more than it saves
_NARROWEST = 8  # elements in a row of a channel; for fewer, NumPy does all rows at once
_WORTH = 1 << 15  # elements per thread; for fewer, waking another costs more than it saves

SIGNATURES: c_kernels.Signatures = {
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
    """The loops of rows.c, or None if they cannot be compiled."""
    return c_kernels.load("rows.c", SIGNATURES)


def _can_run(*arrays: Any) -> bool:
    """Whether these are large float32 arrays of one shape."""
    first = arrays[0]
    if first.size < LEAST or loops() is None:
        return False
    return all(
        a.dtype == dtypes.FLOAT32 and a.shape == first.shape and a.flags.aligned for a in arrays
    )


def _can_read(width: int, *parameters: Any) -> bool:
    """Whether these are None or float32 with `width` elements."""
    return all(
        p is None or (p.dtype == dtypes.FLOAT32 and p.size == width and p.flags.aligned)
        for p in parameters
    )


def _contiguous(array: Any) -> Any:
    return None if array is None else numpy.ascontiguousarray(array)


def _share_rows(work: Callable[[int, int], object], count: int, width: int) -> None:
    """Call `work(start, stop)` for parts of `count` rows of `width` elements, on all threads."""
    parts = min(count * width // _WORTH, count, 4 * threads.get_num_threads())
    if parts < 2 or threads.get_num_threads() == 1:
        work(0, count)
        return

    def block(number: int) -> None:
        work(count * number // parts, count * (number + 1) // parts)

    threads.share_out(block, parts)


def _address(array: Any, index: int) -> int | None:
    """The address of `array[index]`; None and an address stay what they are."""
    if array is None or isinstance(array, int):
        return array
    return array.ctypes.data + index * array.strides[0]


# ---- elementwise


def map_block(name: str, out: Any, x: Any) -> bool:
    """Write a function of each element of a block into `out`, which may be `x`."""
    if not _can_run(x, out):
        return False
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return False
    at = x.ctypes.data
    loops().holdfast_each(CODES[name], at, at, out.ctypes.data, x.size)
    return True


def map_elements(name: str, *arrays: Any) -> Any:
    """A function of each element of `x`, or of a gradient and `x`; None if it does not fit."""
    if not _can_run(*arrays):
        return None
    made = numpy.empty(arrays[0].shape, dtypes.FLOAT32)
    flat = [numpy.ascontiguousarray(a) for a in arrays]
    call, code, to = loops().holdfast_each, CODES[name], made.ctypes.data
    x = flat[0].ctypes.data
    y = flat[1].ctypes.data if len(flat) > 1 else x

    def work(start: int, stop: int) -> None:
        call(code, x + 4 * start, y + 4 * start, to + 4 * start, stop - start)

    _share_rows(work, made.size, 1)
    return made


# ---- softmax


def softmax(x: Any, dim: int, logarithm: bool = False) -> Any:
    """Along the last axis; None if it does not fit."""
    if not _is_last(dim, x) or not _can_run(x):
        return None
    made = numpy.empty(x.shape, dtypes.FLOAT32)
    rows = [a.reshape(-1, x.shape[-1]) for a in (_contiguous(x), made)]
    _run(loops().holdfast_softmax, rows, rows[0].shape, logarithm)
    return made


def softmax_backward(grad: Any, out: Any, dim: int, kind: Any, logarithm: bool = False) -> Any:
    """Along the last axis; None if it does not fit."""
    if not _is_last(dim, grad) or kind != dtypes.FLOAT32 or not _can_run(grad, out):
        return None
    made = numpy.empty(grad.shape, dtypes.FLOAT32)
    rows = [a.reshape(-1, grad.shape[-1]) for a in (_contiguous(grad), _contiguous(out), made)]
    _run(loops().holdfast_softmax_backward, rows, rows[0].shape, logarithm)
    return made


def _is_last(dim: int, array: Any) -> bool:
    return dim in (-1, array.ndim - 1)


# ---- layer norm


def layer_norm(rows: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Normalized rows, their means and 1 / standard deviations; None if it does not fit."""
    if not _can_run(rows) or not _can_read(rows.shape[1], weight, bias):
        return None
    rows, weight, bias = _contiguous(rows), _contiguous(weight), _contiguous(bias)
    made = numpy.empty(rows.shape, dtypes.FLOAT32)
    mean, scale = (numpy.empty(rows.shape[0], dtypes.FLOAT32) for _ in range(2))
    factors = (_address(weight, 0), _address(bias, 0))
    _run(loops().holdfast_layer_norm, (rows, *factors, made, mean, scale), rows.shape, eps)
    return made, mean, scale


def layer_norm_backward(
    grads: Any, rows: Any, mean: Any, rstd: Any, weight: Any, wanted: bool
) -> Any:
    """Gradients of rows (if wanted), weight and bias; None if it does not fit."""
    count, width = rows.shape
    if width < 2 or not _can_run(rows, grads) or not _can_read(width, weight):
        return None
    if not _can_read(count, mean, rstd):
        return None
    arrays = [_contiguous(a) for a in (grads, rows, mean, rstd)]
    weight = _contiguous(weight)
    made = numpy.empty(rows.shape, dtypes.FLOAT32) if wanted else None
    found: list[Any] = []

    def work(start: int, stop: int) -> None:
        sums, scratch = numpy.zeros((2, width)), numpy.empty(3 * width + 64, numpy.float32)
        loops().holdfast_layer_norm_backward(
            *(_address(a, start) for a in arrays), _address(weight, 0), _address(made, start),
            _address(sums, 0), stop - start, width, _address(scratch, 0),
        )  # fmt: skip
        found.append((start, sums))

    _share_rows(work, count, width)
    # In a fixed order, so that thread timing does not change the last bits.
    return made, *numpy.sum([sums for _, sums in sorted(found, key=lambda one: one[0])], axis=0)


# ---- channels: one factor for each row


def can_run_channels(*arrays: Any) -> bool:
    """Whether the functions below take these matrices."""
    return arrays[0].shape[-1] >= _NARROWEST and _can_run(*arrays)


def group_norm(rows: Any, weight: Any, bias: Any, groups: int, positions: int, eps: float) -> Any:
    """`layer_norm` of rows that are groups of channels; None if it does not fit."""
    if positions < _NARROWEST or not _can_run(rows):
        return None
    (count, width), channels = rows.shape, rows.shape[1] // positions
    if not _can_read(groups * channels, weight, bias):
        return None
    rows, weight, bias = _contiguous(rows), _contiguous(weight), _contiguous(bias)
    made = numpy.empty(rows.shape, dtypes.FLOAT32)
    mean, scale = (numpy.empty(count, dtypes.FLOAT32) for _ in range(2))
    factors = (_address(weight, 0), _address(bias, 0))

    def work(start: int, stop: int) -> None:
        written = (_address(a, start) for a in (made, mean, scale))
        loops().holdfast_group_norm(
            _address(rows, start),
            *factors,
            *written,
            stop - start,
            positions,
            start,
            groups,
            channels,
            eps,
        )

    _share_rows(work, count, width)
    return made, mean, scale


def moments(rows: Any) -> tuple[Any, Any]:
    """The mean of each row, and the sum of squared distances from it, in float64."""
    mean, squares = (numpy.empty(rows.shape[0]) for _ in range(2))
    _run(loops().holdfast_moments, (_contiguous(rows), mean, squares), rows.shape)
    return mean, squares


def scale_rows(rows: Any, scale: Any, shift: Any) -> Any:
    """rows * scale + shift."""
    made = numpy.empty(rows.shape, dtypes.FLOAT32)
    _run(
        loops().holdfast_scaled,
        (_contiguous(rows), *_per_row(rows, scale, shift), made),
        rows.shape,
    )
    return made


def gradient_sums(grads: Any, rows: Any, mean: Any) -> tuple[Any, Any]:
    """For each row the sums of grad and of grad * (row - mean)."""
    added, along = (numpy.empty(rows.shape[0]) for _ in range(2))
    arrays = (_contiguous(grads), _contiguous(rows), *_per_row(rows, mean), added, along)
    _run(loops().holdfast_slopes, arrays, rows.shape)
    return added, along


def combine_gradients(grads: Any, rows: Any, mean: Any, scale: Any, bend: Any, less: Any) -> Any:
    """grads * scale - (rows - mean) * bend - less."""
    made = numpy.empty(rows.shape, dtypes.FLOAT32)
    columns = _per_row(rows, mean, scale, bend, less)
    _run(loops().holdfast_bent, (_contiguous(grads), _contiguous(rows), *columns, made), rows.shape)
    return made


def _per_row(rows: Any, *columns: Any) -> list[Any]:
    """float32 factors, one for each row; those of channels repeat for every sample."""
    count = rows.shape[0]
    made = [numpy.ascontiguousarray(c, dtypes.FLOAT32).reshape(-1) for c in columns]
    return [c if c.size == count else numpy.tile(c, count // c.size) for c in made]


def _run(call: Any, arrays: Any, shape: tuple[int, int], *options: Any) -> None:
    """Call a loop for all rows, on all threads: addresses, number of rows, width, options."""
    count, width = shape

    def work(start: int, stop: int) -> None:
        call(*(_address(a, start) for a in arrays), stop - start, width, *options)

    _share_rows(work, count, width)
