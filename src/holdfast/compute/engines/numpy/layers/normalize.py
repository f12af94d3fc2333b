"""Layer, group and RMS norm, in blocks of rows, so that a row is read from memory once."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, widen
from holdfast.compute.engines.numpy.reduce import c_rows
from holdfast.compute.engines.numpy.reduce.axes import (
    row_moments,
    spans,
    store_block,
    working_block,
)
from holdfast.compute.ops.layers.normalize import statistics_dtype

# ---- layer norm


def _rows(input: Any, normalized_shape: Any) -> tuple[Any, tuple[int, ...]]:
    """`input` as a matrix whose rows are normalized, and the shape of the statistics."""
    shape = tuple(normalized_shape)
    lead = input.ndim - len(shape)
    if lead < 0 or input.shape[lead:] != shape or not shape:
        raise ValueError(f"the last sizes of the input are not the normalized shape {list(shape)}")
    count = math.prod(input.shape[:lead])
    return input.reshape(count, math.prod(shape)), (*input.shape[:lead], *(1,) * len(shape))


@kernel("native_layer_norm")
def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    rows, outer = _rows(input, normalized_shape)
    quick = c_rows.layer_norm(rows, weight, bias, eps)
    if quick is not None:
        return quick[0].reshape(input.shape), *(found.reshape(outer) for found in quick[1:])
    kind = statistics_dtype(input, weight, bias)
    weight, bias = (None if p is None else widen(p).reshape(-1) for p in (weight, bias))
    working = dtypes.working(input.dtype)
    count, width = rows.shape
    made = numpy.empty(rows.shape, input.dtype)
    mean, scale = numpy.zeros(count, working), numpy.zeros(count, working)
    for part in spans(count, width) if width else ():
        block = widen(rows[part])
        middle = numpy.add.reduce(block, axis=1, keepdims=True) / working.type(width)
        block = numpy.subtract(block, middle, out=working_block(made[part], working))
        deviation = numpy.vecdot(block, block) / working.type(width) + working.type(eps)
        mean[part], scale[part] = middle[:, 0], 1 / numpy.sqrt(deviation)
        store_block(made[part], _affine(block, scale[part, None], weight, bias))
    return (
        made.reshape(input.shape), cast(mean, kind).reshape(outer), cast(scale, kind).reshape(outer)
    )  # fmt: skip


def _affine(block: Any, scale: Any, weight: Any, bias: Any) -> Any:
    """block * scale * weight + bias, in place."""
    numpy.multiply(block, scale, out=block)
    if weight is not None:
        numpy.multiply(block, weight, out=block)
    if bias is not None:
        numpy.add(block, bias, out=block)
    return block


@kernel("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any,
    output_mask: Any,
) -> Any:  # fmt: skip
    rows, _ = _rows(input, normalized_shape)
    count, width = rows.shape
    grads, mean, rstd = grad_out.reshape(rows.shape), mean.reshape(-1, 1), rstd.reshape(-1, 1)
    quick = c_rows.layer_norm_backward(grads, rows, mean, rstd, weight, output_mask[0])
    if quick is not None:
        return _select_gradients(output_mask, quick, (input, weight, bias))
    factor = None if weight is None else widen(weight).reshape(-1)
    working = dtypes.working(input.dtype)
    made = numpy.zeros(rows.shape, input.dtype) if output_mask[0] else None
    to_weight, to_bias = numpy.zeros(width), numpy.zeros(width)
    for part in spans(count, width) if width else ():
        grad, scale = widen(grads[part]), widen(rstd[part])
        normal = numpy.subtract(widen(rows[part]), widen(mean[part]))
        numpy.multiply(normal, scale, out=normal)
        product = numpy.multiply(grad, normal)
        if output_mask[1]:
            to_weight += numpy.add.reduce(product, axis=0)
        if output_mask[2]:
            to_bias += numpy.add.reduce(grad, axis=0)
        if made is not None and width == 1:
            made[part] = _single_element_gradient(
                grad, widen(rows[part]), widen(mean[part]), scale, factor
            )
        elif made is not None:
            factors = scale / working.type(width)
            bend, middle = _row_sums(product, factor) * factors, _row_sums(grad, factor) * factors
            made[part] = _input_gradient(grad, scale, factor, normal, bend, middle, product)
    return _select_gradients(output_mask, (made, to_weight, to_bias), (input, weight, bias))


def _row_sums(rows: Any, factor: Any) -> Any:
    """Weighted sums of rows, as a column."""
    if factor is None:
        return numpy.add.reduce(rows, axis=1, keepdims=True)
    return numpy.matmul(rows, factor)[:, None]


def _input_gradient(
    grad: Any, scale: Any, factor: Any, normal: Any, bend: Any, middle: Any, out: Any
) -> Any:
    """grad * scale * factor - normal * bend - middle, into `out`; overwrites `normal`."""
    numpy.multiply(grad, scale, out=out)
    if factor is not None:
        numpy.multiply(out, factor, out=out)
    numpy.multiply(normal, bend, out=normal)
    numpy.subtract(out, normal, out=out)
    return numpy.subtract(out, middle, out=out)


def _single_element_gradient(grad: Any, values: Any, mean: Any, scale: Any, factor: Any) -> Any:
    """For rows of one element: the gradient is 0 but for the rounding errors that torch has."""
    wide, kind = numpy.float64, grad.dtype
    added = grad if factor is None else grad * factor
    along = grad * values if factor is None else grad * values * factor
    bend = (added.astype(wide) * mean - along).astype(kind) * scale * scale * scale
    shift = (-bend.astype(wide) * mean - added * scale).astype(kind)
    sloped = scale * grad if factor is None else scale * grad * factor
    return (bend.astype(wide) * values + sloped).astype(kind) + shift


def _select_gradients(mask: Any, found: Any, like: Any) -> tuple[Any, ...]:
    """Gradients in the shape and dtype of their arguments; None where not wanted."""
    return tuple(
        value.astype(of.dtype, copy=False).reshape(of.shape) if wanted and of is not None else None
        for wanted, value, of in zip(mask, found, like, strict=True)
    )


# ---- group norm


@kernel("native_group_norm")
def group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    if C % group:
        raise ValueError(f"{C} channels do not make {group} equal groups")
    kind = statistics_dtype(input, weight, bias)
    values = widen(input.reshape(N * group, -1 if input.size else 0))
    width = C // group * HxW
    quick = c_rows.group_norm(values, weight, bias, group, HxW, eps)
    if quick is not None:
        made, mean, rstd = quick
    else:
        mean, squares = row_moments(values)
        rstd = 1 / numpy.sqrt(squares / values.dtype.type(max(width, 1)) + values.dtype.type(eps))
        scale = numpy.repeat(rstd, C // group).reshape(N, C)
        scale = scale if weight is None else scale * widen(weight)
        shift = -numpy.repeat(mean, C // group).reshape(N, C) * scale
        shift = shift if bias is None else shift + widen(bias)
        made = _scale_rows(values.reshape(N * C, HxW), scale.reshape(-1, 1), shift.reshape(-1, 1))
    return (
        cast(made, input.dtype).reshape(input.shape),
        cast(mean, kind).reshape(N, group), cast(rstd, kind).reshape(N, group),
    )  # fmt: skip


def _scale_rows(rows: Any, scale: Any, shift: Any) -> Any:
    """rows * scale + shift, a block at a time."""
    made = numpy.empty(rows.shape, rows.dtype)
    for part in spans(*rows.shape):
        numpy.multiply(rows[part], scale[part], out=made[part])
        numpy.add(made[part], shift[part], out=made[part])
    return made


@kernel("native_group_norm_backward")
def group_norm_backward(
    grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: int, C: int, HxW: int,
    group: int, output_mask: Any,
) -> Any:  # fmt: skip
    each = C // group
    values = widen(input).reshape(N, group, each, HxW)
    grads = widen(grad_out).reshape(values.shape)
    mean = widen(mean).reshape(N, group, 1)
    rstd = widen(rstd).reshape(N, group, 1)
    grad_rows, rows = (a.reshape(N * C, HxW) for a in (grads, values))
    quick = c_rows.can_run_channels(grad_rows, rows)
    # Both parameters' gradients need only sums over positions.
    if quick:
        sums = c_rows.gradient_sums(grad_rows, rows, numpy.repeat(mean, each, axis=2))
        added, along = (s.reshape(N, group, each) for s in sums)
        along = along * rstd
    else:
        added = numpy.add.reduce(grads, axis=3)
        products = numpy.vecdot(grads, values)
        along = (products - added * mean) * rstd
    to_weight = numpy.add.reduce(along, axis=0, dtype=numpy.float64)
    to_bias = numpy.add.reduce(added, axis=0, dtype=numpy.float64)
    made = None
    if output_mask[0]:
        factor = 1 if weight is None else widen(weight).reshape(group, each)
        count = values.dtype.type(max(each * HxW, 1))
        inner = numpy.add.reduce(along * factor, axis=2, keepdims=True) / count
        middle = numpy.add.reduce(added * factor, axis=2, keepdims=True) / count
        slope = numpy.broadcast_to(rstd * factor, added.shape)
        bend, less = inner * rstd * rstd, middle * rstd
        if quick:
            about = (numpy.broadcast_to(a, added.shape) for a in (mean, slope, bend, less))
            made = c_rows.combine_gradients(grad_rows, rows, *about)
        else:
            made = grads * slope[..., None]
            made -= (values - mean[..., None]) * bend[..., None]
            made -= less[..., None]
    like = numpy.empty(C, input.dtype) if weight is None else weight
    return _select_gradients(output_mask, (made, to_weight, to_bias), (input, like, like))


# ---- RMS norm


@kernel("_fused_rms_norm")
def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    rows, outer = _rows(input, normalized_shape)
    working = dtypes.working(input.dtype)
    small = numpy.finfo(working).eps if eps is None else eps
    factor = None if weight is None else widen(weight).reshape(-1)
    count, width = rows.shape
    made, scale = numpy.empty(rows.shape, input.dtype), numpy.zeros(count, working)
    for part in spans(count, width) if width else ():
        block = widen(rows[part])
        mean = numpy.vecdot(block, block) / working.type(width) + working.type(small)
        scale[part] = 1 / numpy.sqrt(mean)
        made[part] = _affine(block * scale[part, None], working.type(1), factor, None)
    return made.reshape(input.shape), scale.reshape(outer)


@kernel("_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Any, rstd: Any, weight: Any, output_mask: Any
) -> Any:
    rows, _ = _rows(input, normalized_shape)
    width = rows.shape[1]
    grads, scale = widen(grad_out).reshape(rows.shape), widen(rstd).reshape(-1, 1)
    normal = widen(rows) * scale
    factor = None if weight is None else widen(weight).reshape(-1)
    scaled = grads if factor is None else grads * factor
    inner = numpy.vecdot(scaled, normal)[:, None] / normal.dtype.type(max(width, 1))
    made = (scaled - normal * inner) * scale if output_mask[0] else None
    to_weight = numpy.add.reduce(grads * normal, axis=0) if output_mask[1] else None
    return _select_gradients(output_mask, (made, to_weight), (input, weight))
