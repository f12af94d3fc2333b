"""Batch norm. Running statistics are updated in place, and only in training."""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy.kernels import cast, kernel, widen
from holdfast.compute.engines.numpy.reduce import c_rows
from holdfast.compute.engines.numpy.reduce.axes import (
    BLOCK,
    spans,
    store_block,
    total,
    working_block,
)
from holdfast.compute.ops.layers.normalize import statistics_dtype


def _to_channels(input: Any) -> Any:
    """Reshape to [samples, channels, positions]."""
    if input.ndim < 2:
        raise ValueError("batch norm takes an input of at least 2 dimensions: samples, channels")
    positions = math.prod(input.shape[2:])
    return input.reshape(input.shape[0], input.shape[1], positions)


def _check_parameters(channels: int, **named: Any) -> None:
    for name, array in named.items():
        if array is not None and array.shape != (channels,):
            raise ValueError(f"{name} has shape {list(array.shape)}, for {channels} channels")


def _rows(values: Any) -> Any:
    """Reshape to one row for each channel of each sample."""
    return values.reshape(values.shape[0] * values.shape[1], values.shape[2])


def _sum_channels(values: Any) -> Any:
    """The sum of each channel of [samples, channels, positions]."""
    if values.shape[2] == 1:
        return total(values[:, :, 0], (0,))
    return total(numpy.add.reduce(values, axis=2), (0,))


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
    if not count:
        raise ValueError("training needs at least one value of each channel")
    rows = _rows(values)
    if c_rows.can_run_channels(rows):
        means, squares = (a.reshape(values.shape[:2]) for a in c_rows.moments(rows))
        mean = means.mean(axis=0)
        squares += values.shape[2] * numpy.square(means - mean)
        return cast(mean, values.dtype), cast(squares.sum(axis=0) / count, values.dtype)
    mean = _sum_channels(values) / values.dtype.type(count)
    return mean, _squared_distances(values, mean) / values.dtype.type(count)


def _update_running(running: Any, value: Any, momentum: float) -> None:
    if running is not None:
        kept = running.astype(numpy.float64) * (1 - momentum)
        running[...] = (kept + value.astype(numpy.float64) * momentum).astype(running.dtype)


def _normalize(values: Any, mean: Any, rstd: Any, weight: Any, bias: Any, kind: Any) -> Any:
    scale = rstd if weight is None else rstd * widen(weight)
    shift = -mean * scale if bias is None else widen(bias) - mean * scale
    if kind == values.dtype and c_rows.can_run_channels(_rows(values)):
        return c_rows.scale_rows(_rows(values), scale, shift)
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
    values = widen(_to_channels(input))
    _check_parameters(values.shape[1], weight=weight, bias=bias, running_mean=running_mean,
             running_var=running_var)  # fmt: skip
    kind = statistics_dtype(input, weight, bias, running_mean, running_var)
    if training:
        mean, variance = _statistics(values)
        count = values.shape[0] * values.shape[2]
        _update_running(running_mean, mean, momentum)
        _update_running(running_var, variance * (count / max(count - 1, 1)), momentum)
    elif running_mean is None or running_var is None:
        raise ValueError("outside of training, batch norm needs running_mean and running_var")
    else:
        mean, variance = widen(running_mean), widen(running_var)
    rstd = 1 / numpy.sqrt(variance + variance.dtype.type(eps))
    made = _normalize(values, mean, rstd, weight, bias, input.dtype).reshape(input.shape)
    if not training:
        mean = rstd = numpy.empty(0, kind)
    return made, cast(mean, kind), cast(rstd, kind)


@kernel("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm(input, weight, bias, None, None, training, momentum, eps)


@kernel("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)


@kernel("_batch_norm_with_update")
def batch_norm_with_update(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    found = batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, numpy.empty(0, numpy.uint8)


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
        made = _input_gradient(grads, values, mean, scale, bend, added / count, input.dtype)
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
    if c_rows.can_run_channels(_rows(values), _rows(grads)):
        found = c_rows.gradient_sums(_rows(grads), _rows(values), mean)
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


def _input_gradient(
    grads: Any, values: Any, mean: Any, scale: Any, bend: Any, middle: Any, kind: Any
) -> Any:
    """scale * (grad - middle - distance * bend), or scale * grad outside of training."""
    rows, slopes = _rows(values), _rows(grads)
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


@kernel("batch_norm_backward")
def batch_norm_backward_with_reserve(
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_var: Any, update: bool, eps: float, output_mask: Any, reserve: Any,
) -> Any:  # fmt: skip
    return batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
        output_mask,
    )  # fmt: skip
