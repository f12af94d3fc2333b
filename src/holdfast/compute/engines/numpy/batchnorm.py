"""Batch normalization: statistics of every channel, which training notes in running ones.

Promise: running statistics are changed in place, and only in training; narrow floats are computed
in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.numpy import rows as loops
from holdfast.compute.engines.numpy.kernels import cast, kernel, widened
from holdfast.compute.engines.numpy.reducing import BLOCK, place, settle, spans, total
from holdfast.compute.ops.normalize import statistics_format


def _sheets(input: Any) -> Any:
    """(samples, channels, positions)."""
    if input.ndim < 2:
        raise ValueError("batch norm takes an input of at least 2 dimensions: samples, channels")
    positions = math.prod(input.shape[2:])
    return input.reshape(input.shape[0], input.shape[1], positions)


def _checked(channels: int, **named: Any) -> None:
    for name, array in named.items():
        if array is not None and array.shape != (channels,):
            raise ValueError(f"{name} has shape {list(array.shape)}, for {channels} channels")


def _rows(values: Any) -> Any:
    """A row for each channel of each sample."""
    return values.reshape(values.shape[0] * values.shape[1], values.shape[2])


def _over_channels(values: Any) -> Any:
    """Sums of each channel of (samples, channels, positions)."""
    if values.shape[2] == 1:
        return total(values[:, :, 0], (0,))
    return total(numpy.add.reduce(values, axis=2), (0,))


def _apart(values: Any, mean: Any) -> Any:
    """Sums of squared distances from each channel's mean."""
    samples, channels, positions = values.shape
    if positions == 1:
        distance = values[:, :, 0] - mean
        return total(numpy.multiply(distance, distance, out=distance), (0,))
    found = numpy.zeros((samples, channels), values.dtype)
    for part in _parts(values.shape):
        distance = values[part] - mean[part[1], None]
        found[part[:2]] = numpy.vecdot(distance, distance)
    return total(found, (0,))


def _parts(shape: tuple[int, ...]) -> Any:
    """Blocks of whole samples, or of some channels of one where samples are large."""
    samples, channels, positions = shape
    if channels * positions <= BLOCK:
        for part in spans(samples, channels * positions):
            yield part, slice(None)
        return
    for sample in range(samples):
        for part in spans(channels, positions):
            yield slice(sample, sample + 1), part


def _statistics(values: Any) -> tuple[Any, Any]:
    """The mean and the (biased) variance of each channel."""
    count = values.shape[0] * values.shape[2]
    if not count:
        raise ValueError("training needs at least one value of each channel")
    rows = _rows(values)
    if loops.fit_channels(rows):
        means, squares = (a.reshape(values.shape[:2]) for a in loops.moments(rows))
        mean = means.mean(axis=0)
        squares += values.shape[2] * numpy.square(means - mean)
        return cast(mean, values.dtype), cast(squares.sum(axis=0) / count, values.dtype)
    mean = _over_channels(values) / values.dtype.type(count)
    return mean, _apart(values, mean) / values.dtype.type(count)


def _follow(running: Any, value: Any, momentum: float) -> None:
    if running is not None:
        kept = running.astype(numpy.float64) * (1 - momentum)
        running[...] = (kept + value.astype(numpy.float64) * momentum).astype(running.dtype)


def _applied(values: Any, mean: Any, rstd: Any, weight: Any, bias: Any, kind: Any) -> Any:
    scale = rstd if weight is None else rstd * widened(weight)
    shift = -mean * scale if bias is None else widened(bias) - mean * scale
    if kind == values.dtype and loops.fit_channels(_rows(values)):
        return loops.scaled(_rows(values), scale, shift)
    made = numpy.empty(values.shape, kind)
    for part in _parts(values.shape):
        target = made[part]
        block = place(target, values.dtype)
        numpy.multiply(values[part], scale[part[1], None], out=block)
        settle(target, numpy.add(block, shift[part[1], None], out=block))
    return made


@kernel("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    values = widened(_sheets(input))
    _checked(values.shape[1], weight=weight, bias=bias, running_mean=running_mean,
             running_var=running_var)  # fmt: skip
    kind = statistics_format(input, weight, bias, running_mean, running_var)
    if training:
        mean, variance = _statistics(values)
        count = values.shape[0] * values.shape[2]
        _follow(running_mean, mean, momentum)
        _follow(running_var, variance * (count / max(count - 1, 1)), momentum)
    elif running_mean is None or running_var is None:
        raise ValueError("outside of training, batch norm needs running_mean and running_var")
    else:
        mean, variance = widened(running_mean), widened(running_var)
    rstd = 1 / numpy.sqrt(variance + variance.dtype.type(eps))
    made = _applied(values, mean, rstd, weight, bias, input.dtype).reshape(input.shape)
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
    values, grads = _sheets(input), _sheets(grad_out)
    working = formats.working(input.dtype)
    if train:
        mean, rstd = widened(save_mean), widened(save_invstd)
    else:
        mean = widened(running_mean)
        rstd = 1 / numpy.sqrt(widened(running_var) + working.type(eps))
    added, along = _sums(grads, values, mean)
    scale = rstd if weight is None else rstd * widened(weight)
    made = None
    if output_mask[0]:
        count = working.type(max(values.shape[0] * values.shape[2], 1))
        bend = along * rstd * rstd / count if train else None
        made = _bent(grads, values, mean, scale, bend, added / count, input.dtype)
        made = made.reshape(input.shape)
    kind = input.dtype if weight is None else weight.dtype
    return (
        made,
        cast(along * rstd, kind) if output_mask[1] else None,
        cast(added, kind) if output_mask[2] else None,
    )


def _sums(grads: Any, values: Any, mean: Any) -> tuple[Any, Any]:
    """Of each channel: the gradients, and the gradients times the distance from the mean."""
    samples, channels, positions = values.shape
    working = formats.working(values.dtype)
    if loops.fit_channels(_rows(values), _rows(grads)):
        found = loops.slopes(_rows(grads), _rows(values), mean)
        added, along = (a.reshape(samples, channels).sum(axis=0) for a in found)
        return cast(added, working), cast(along, working)
    added, along = (numpy.zeros((samples, channels), working) for _ in range(2))
    for part in _parts(values.shape):
        grad, distance = widened(grads[part]), widened(values[part]) - mean[part[1], None]
        if positions == 1:
            added[part] = grad[:, :, 0]
            along[part] = numpy.multiply(grad, distance, out=distance)[:, :, 0]
        else:
            added[part] = numpy.add.reduce(grad, axis=2)
            along[part] = numpy.vecdot(grad, distance)
    return total(added, (0,)), total(along, (0,))


def _bent(grads: Any, values: Any, mean: Any, scale: Any, bend: Any, middle: Any, kind: Any) -> Any:
    """scale * (grad - middle - distance * bend), or scale * grad outside of training."""
    rows, slopes = _rows(values), _rows(grads)
    if kind == formats.FLOAT32 and loops.fit_channels(rows, slopes):
        if bend is None:
            return loops.scaled(slopes, scale, numpy.zeros_like(scale))
        return loops.bent(slopes, rows, mean, scale, bend * scale, middle * scale)
    made = numpy.empty(values.shape, kind)
    for part in _parts(values.shape):
        channels = (part[1], None)
        if bend is None:
            made[part] = widened(grads[part]) * scale[channels]
            continue
        target = made[part]
        block = place(target, mean.dtype)
        numpy.subtract(widened(values[part]), mean[channels], out=block)
        numpy.multiply(block, bend[channels], out=block)
        numpy.subtract(widened(grads[part]), block, out=block)
        numpy.subtract(block, middle[channels], out=block)
        settle(target, numpy.multiply(block, scale[channels], out=block))
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
