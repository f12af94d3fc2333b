"""Softmax and normalization of packed rows by the kernels of rows_cpu.cl and rows_gpu.cl.

Returns None if the kernels do not fit the layout or the dtype; then nothing was launched.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import storage

_WORDS = frozenset(("float32", "float16", "bfloat16"))  # on both mappings
_CPU, _GPU = "panels_cpu rows_cpu", "fours_gpu rows_gpu"  # kernel files
_WIDEST = 256  # lanes per row on GPUs
_HELD = 8  # vectors that a lane keeps in registers; longer rows are read again for each pass


def _stride(array: Array, columns: int) -> int | None:
    """The step from row to row, if each row is packed."""
    if array.is_contiguous:
        return columns
    if (
        array.ndim == 2
        and array.steps[1] == 1
        and array.shape[1] == columns
        and array.steps[0] >= columns
    ):
        return array.steps[0]
    return None


def _fits(engine: CLEngine, array: Array) -> bool:
    if array.dtype == dtypes.FLOAT64:
        return engine.mapping == "cpu" and engine.has_double
    return storage(array.dtype) in _WORDS and bool(array.size)


def _vector(engine: CLEngine, wide: bool) -> int:
    """Elements in a vector of a CPU."""
    lanes = max(engine.place.device.native_vector_width_float, 4)
    return min(lanes, 16) // (2 if wide else 1)


def _on_cpu(engine: CLEngine, array: Array) -> dict[str, Any]:
    return {"WORD": storage(array.dtype), "VEC": _vector(engine, array.dtype == dtypes.FLOAT64)}


def _on_gpu(
    engine: CLEngine, columns: int, strides: tuple[int, ...], span: int, *arrays: Array
) -> dict[str, Any]:
    """Defines for rows of this length: vectors if all arrays are aligned, lanes as a row needs."""
    size = 4 * arrays[0].itemsize
    even = all(n % 4 == 0 for n in (columns, span, *strides))
    wide = 4 if even and all((a.memory.start + a.offset) % size == 0 for a in arrays) else 1
    vectors = -(-columns // wide)
    most = min(_WIDEST, engine.most_items)
    lanes = 8
    while lanes < most and lanes * 4 < vectors:
        lanes *= 2
    per = 1
    while per < _HELD and lanes * per < vectors:
        per *= 2
    return {
        "WORD": storage(arrays[0].dtype),
        "LANES": lanes,
        "ROWS": max(min(128, most) // lanes, 1),
        "PER": per,
        "V": wide,
        "LOOP": int(lanes * per < vectors),
        "NV_SHUFFLE": int("nvidia" in engine.place.device.vendor.lower()),
    }


def _grid(defines: dict[str, Any], rows: int) -> tuple[Any, Any]:
    group = defines["LANES"] * defines["ROWS"]
    return (group * -(-rows // defines["ROWS"]),), (group,)


def _rows_per_item(engine: CLEngine, rows: int) -> int:
    return max(rows // (8 * engine.units), 1)


# ---- softmax


def softmax(engine: CLEngine, self: Array, axis: int, logarithm: bool) -> Array | None:
    """Softmax along a dimension."""
    if not self.ndim or not _fits(engine, self):
        return None
    columns = self.shape[axis]
    stride = _stride(self, columns)
    if stride is None:
        return None
    last = axis == self.ndim - 1
    if engine.mapping == "cpu":
        if not last and not self.is_contiguous:
            return None
        return _softmax_cpu(engine, self, axis, columns, stride, logarithm)
    return _softmax_gpu(engine, self, columns, stride, logarithm) if last else None


def _softmax_cpu(
    engine: CLEngine, self: Array, axis: int, columns: int, stride: int, logarithm: bool
) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    defines = _on_cpu(engine, self)
    if logarithm:
        defines["LOG"] = 1
    inner = math.prod(self.shape[axis + 1 :])
    rows = self.size // columns
    if inner == 1:
        each = _rows_per_item(engine, rows)
        call = engine.kernel(_CPU, "softmax_rows", **defines)
        engine.launch(
            call, (-(-rows // each),), (1,), self, made, rows, columns, stride, columns, each
        )
        return made
    call, outer = engine.kernel(_CPU, "softmax_along", **defines), rows // inner
    size = (-(-inner // defines["VEC"]), outer)
    engine.launch(call, size, (1, 1), self, made, outer, columns, inner)
    return made


def _softmax_gpu(
    engine: CLEngine, self: Array, columns: int, stride: int, logarithm: bool
) -> Array:
    made = engine.alloc(self.shape, self.dtype)
    rows = self.size // columns
    defines = _on_gpu(engine, columns, (stride,), 4, self, made)
    call = engine.kernel(_GPU, "rows_softmax", LOG=int(logarithm), **defines)
    engine.launch(call, *_grid(defines, rows), self, made, rows, columns, stride, columns)
    return made


# ---- normalization


def normalize(
    engine: CLEngine, input: Array, columns: int, weight: Array | None, bias: Array | None,
    eps: float, *, rms: bool = False, groups: int = 1, span: int = 1,
) -> tuple[Array, Array, Array] | None:  # fmt: skip
    """Normalized rows of `columns` elements, with their means and 1 / deviations in the wide dtype.

    `groups` or `span` above 1: rows are (sample, group), and a weight applies to a channel of
    `span` elements.
    """
    stride = _stride(input, columns)
    given = [p for p in (weight, bias) if p is not None]
    if stride is None or not _fits(engine, input):
        return None
    if any(p.dtype != input.dtype or not p.is_contiguous for p in given):
        return None
    rows = input.size // columns
    made = engine.alloc(input.shape, input.dtype)
    mean, rstd = (engine.alloc((rows,), dtypes.working(input.dtype)) for _ in range(2))
    call = _Norm(input, weight, bias, made, mean, rstd, rows, columns, stride, eps, groups, span)
    done = (_norm_cpu if engine.mapping == "cpu" else _norm_gpu)(engine, call, rms)
    return (made, mean, rstd) if done else None


class _Norm(NamedTuple):
    """One normalization, which fills `made`, `mean` and `rstd`."""

    input: Array
    weight: Array | None
    bias: Array | None
    made: Array
    mean: Array
    rstd: Array
    rows: int
    columns: int
    stride: int
    eps: float
    groups: int
    span: int

    @property
    def is_grouped(self) -> bool:
        """Whether weights belong to channels rather than to columns."""
        return self.groups * self.span > 1


def _norm_cpu(engine: CLEngine, call: _Norm, rms: bool) -> bool:
    input, weight, bias, made, mean, rstd, rows, columns, stride, eps, groups, span = call
    defines = _on_cpu(engine, input)
    defines |= {} if weight is None else {"HAS_WEIGHT": 1}
    defines |= {} if bias is None else {"HAS_BIAS": 1}
    given = [p for p in (weight, bias) if p is not None]
    small = numpy.float64(eps) if input.dtype == dtypes.FLOAT64 else float(eps)
    if call.is_grouped:
        kernel = engine.kernel(_CPU, "group_norm_rows", **defines)
        sizes = rows, columns // span, span, groups, small
        engine.launch(kernel, (rows,), (1,), input, *given, made, mean, rstd, *sizes)
        return True
    each = _rows_per_item(engine, rows)
    kernel = engine.kernel(_CPU, "rms_norm_rows" if rms else "layer_norm_rows", **defines)
    found = (made, rstd) if rms else (made, mean, rstd)
    sizes = rows, columns, stride, columns, each, small
    engine.launch(kernel, (-(-rows // each),), (1,), input, *given, *found, *sizes)
    return True


def _norm_gpu(engine: CLEngine, call: _Norm, rms: bool) -> bool:
    input, weight, bias, made, mean, rstd, rows, columns, stride, eps, groups, span = call
    grouped = call.is_grouped
    if grouped and groups == 1 and (weight is not None or bias is not None):
        return False  # the kernel recognizes group norm by its groups
    plain = [a for a in (input, made, *(() if grouped else (weight, bias))) if a is not None]
    defines = _on_gpu(engine, columns, (stride,), span if grouped else 4, *plain)
    kernel = engine.kernel(
        _GPU, "rows_norm", RMS=int(rms), HAS_WEIGHT=int(weight is not None),
        HAS_BIAS=int(bias is not None), HAS_STATS=1, GROUPS=groups, **defines,
    )  # fmt: skip
    factors = (input if weight is None else weight, input if bias is None else bias)
    sizes = rows, columns, stride, columns, span, float(eps)
    engine.launch(kernel, *_grid(defines, rows), input, *factors, made, mean, rstd, *sizes)
    return True
