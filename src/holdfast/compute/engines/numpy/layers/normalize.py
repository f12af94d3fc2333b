"""Layer, group, RMS and batch norm, in blocks of rows, so that a row is read from memory once.

Running statistics are updated in place, and only in training.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, register, widen
from holdfast.compute.engines.numpy.reduce import c_rows
from holdfast.compute.engines.numpy.reduce.axes import (
    BLOCK,
    row_moments,
    spans,
    store_block,
    total,
    working_block,
)
from holdfast.compute.ops.layers.normalize import (
    check_batch_norm,
    leading_dims,
    other_forms,
    statistics_dtype,
)

# ---- layer norm


def _rows(input: Any, normalized_shape: Any) -> tuple[Any, tuple[int, ...]]:
    """`input` as a matrix whose rows are normalized, and the shape of the statistics."""
    lead = leading_dims(input, normalized_shape)
    outer, inner = input.shape[:lead], input.shape[lead:]
    return input.reshape(math.prod(outer), math.prod(inner)), (*outer, *(1,) * len(inner))


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


# ---- batch norm


def _to_channels(input: Any) -> Any:
    """Reshape to [samples, channels, positions]."""
    return input.reshape(*input.shape[:2], math.prod(input.shape[2:]))


def _channel_rows(values: Any) -> Any:
    """Reshape to one row for each channel of each sample."""
    return values.reshape(values.shape[0] * values.shape[1], values.shape[2])


def _squared_distances(values: Any, mean: Any) -> Any:
    """The sum of squared distances from each channel's mean."""
    samples, channels, positions = values.shape
    if positions == 1:
        distance = values[:, :, 0] - mean
        return total(numpy.multiply(distance, distance, out=distance), (0,))
    found = numpy.zeros((samples, channels), values.dtype)
    for part in _blocks(values.shape):
        distance = values[part] - mean[part[1], None]
        found[part[:2]] = numpy.vecdot(distance, distance)
    return total(found, (0,))


def _blocks(shape: tuple[int, ...]) -> Any:
    """Blocks of whole samples, or of some channels of one sample if samples are large."""
    samples, channels, positions = shape
    if channels * positions <= BLOCK:
        for part in spans(samples, channels * positions):
            yield part, slice(None)
        return
    for sample in range(samples):
        for part in spans(channels, positions):
            yield slice(sample, sample + 1), part


def _statistics(values: Any) -> tuple[Any, Any]:
    """The mean and the biased variance of each channel."""
    count = values.shape[0] * values.shape[2]
    rows = _channel_rows(values)
    if c_rows.can_run_channels(rows):
        means, squares = (a.reshape(values.shape[:2]) for a in c_rows.moments(rows))
        mean = means.mean(axis=0)
        squares += values.shape[2] * numpy.square(means - mean)
        return cast(mean, values.dtype), cast(squares.sum(axis=0) / count, values.dtype)
    sums = values[:, :, 0] if values.shape[2] == 1 else numpy.add.reduce(values, axis=2)
    mean = total(sums, (0,)) / values.dtype.type(count)
    return mean, _squared_distances(values, mean) / values.dtype.type(count)


def _update_running(running: Any, value: Any, momentum: float) -> None:
    if running is not None:
        kept = running.astype(numpy.float64) * (1 - momentum)
        running[...] = (kept + value.astype(numpy.float64) * momentum).astype(running.dtype)


def _scale_channels(values: Any, mean: Any, rstd: Any, weight: Any, bias: Any, kind: Any) -> Any:
    scale = rstd if weight is None else rstd * widen(weight)
    shift = -mean * scale if bias is None else widen(bias) - mean * scale
    if kind == values.dtype and c_rows.can_run_channels(_channel_rows(values)):
        return c_rows.scale_rows(_channel_rows(values), scale, shift)
    made = numpy.empty(values.shape, kind)
    for part in _blocks(values.shape):
        target = made[part]
        block = working_block(target, values.dtype)
        numpy.multiply(values[part], scale[part[1], None], out=block)
        store_block(target, numpy.add(block, shift[part[1], None], out=block))
    return made


@kernel("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    check_batch_norm(input, weight, bias, running_mean, running_var, training)
    values = widen(_to_channels(input))
    kind = statistics_dtype(input, weight, bias, running_mean, running_var)
    if training:
        mean, variance = _statistics(values)
        count = values.shape[0] * values.shape[2]
        _update_running(running_mean, mean, momentum)
        _update_running(running_var, variance * (count / max(count - 1, 1)), momentum)
    else:
        mean, variance = widen(running_mean), widen(running_var)
    rstd = 1 / numpy.sqrt(variance + variance.dtype.type(eps))
    made = _scale_channels(values, mean, rstd, weight, bias, input.dtype).reshape(input.shape)
    if not training:
        mean = rstd = numpy.empty(0, kind)
    return made, cast(mean, kind), cast(rstd, kind)


@kernel("native_batch_norm_backward")
def batch_norm_backward(
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_invstd: Any, train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    values, grads = _to_channels(input), _to_channels(grad_out)
    working = dtypes.working(input.dtype)
    if train:
        mean, rstd = widen(save_mean), widen(save_invstd)
    else:
        mean = widen(running_mean)
        rstd = 1 / numpy.sqrt(widen(running_var) + working.type(eps))
    added, along = _gradient_sums(grads, values, mean)
    scale = rstd if weight is None else rstd * widen(weight)
    made = None
    if output_mask[0]:
        count = working.type(max(values.shape[0] * values.shape[2], 1))
        bend = along * rstd * rstd / count if train else None
        made = _channel_gradient(grads, values, mean, scale, bend, added / count, input.dtype)
        made = made.reshape(input.shape)
    kind = input.dtype if weight is None else weight.dtype
    return (
        made,
        cast(along * rstd, kind) if output_mask[1] else None,
        cast(added, kind) if output_mask[2] else None,
    )


def _gradient_sums(grads: Any, values: Any, mean: Any) -> tuple[Any, Any]:
    """The sums of grad and of grad * (value - mean) of each channel."""
    samples, channels, positions = values.shape
    working = dtypes.working(values.dtype)
    if c_rows.can_run_channels(_channel_rows(values), _channel_rows(grads)):
        found = c_rows.gradient_sums(_channel_rows(grads), _channel_rows(values), mean)
        added, along = (a.reshape(samples, channels).sum(axis=0) for a in found)
        return cast(added, working), cast(along, working)
    added, along = (numpy.zeros((samples, channels), working) for _ in range(2))
    for part in _blocks(values.shape):
        grad, distance = widen(grads[part]), widen(values[part]) - mean[part[1], None]
        if positions == 1:
            added[part] = grad[:, :, 0]
            along[part] = numpy.multiply(grad, distance, out=distance)[:, :, 0]
        else:
            added[part] = numpy.add.reduce(grad, axis=2)
            along[part] = numpy.vecdot(grad, distance)
    return total(added, (0,)), total(along, (0,))


def _channel_gradient(
    grads: Any, values: Any, mean: Any, scale: Any, bend: Any, middle: Any, kind: Any
) -> Any:
    """scale * (grad - middle - distance * bend), or scale * grad outside of training."""
    rows, slopes = _channel_rows(values), _channel_rows(grads)
    if kind == dtypes.FLOAT32 and c_rows.can_run_channels(rows, slopes):
        if bend is None:
            return c_rows.scale_rows(slopes, scale, numpy.zeros_like(scale))
        return c_rows.combine_gradients(slopes, rows, mean, scale, bend * scale, middle * scale)
    made = numpy.empty(values.shape, kind)
    for part in _blocks(values.shape):
        channels = (part[1], None)
        if bend is None:
            made[part] = widen(grads[part]) * scale[channels]
            continue
        target = made[part]
        block = working_block(target, mean.dtype)
        numpy.subtract(widen(values[part]), mean[channels], out=block)
        numpy.multiply(block, bend[channels], out=block)
        numpy.subtract(widen(grads[part]), block, out=block)
        numpy.subtract(block, middle[channels], out=block)
        store_block(target, numpy.multiply(block, scale[channels], out=block))
    return made


_FORMS = other_forms(batch_norm, batch_norm_backward, lambda _: numpy.empty(0, numpy.uint8))
for _name, _form in _FORMS.items():
    register(_name, _form)
