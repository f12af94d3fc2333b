"""Batch normalization in ATen's several forms, and its gradient.

Running statistics are updated in place, in training only, after everything else was computed.
Narrow floats are computed in float32.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, inputs_of
from holdfast.compute.engines.opencl.layers.normalize import sum_together
from holdfast.compute.engines.opencl.layout.views import to_shape
from holdfast.compute.engines.opencl.reduce.moments import moments
from holdfast.compute.engines.opencl.reduce.reduce import scalar
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.layers.normalize import statistics_dtype


def _reduced_dims(input: Array) -> tuple[int, ...]:
    """All dimensions but that of channels."""
    if input.ndim < 2:
        raise ValueError("batch norm takes an input of at least 2 dimensions: samples, channels")
    return (0, *range(2, input.ndim))


def _check_shapes(channels: int, **named: Any) -> None:
    for name, array in named.items():
        if array is not None and array.shape != (channels,):
            raise ValueError(f"{name} has shape {list(array.shape)}, for {channels} channels")


def _per_channel(engine: CLEngine, array: Any, input: Array) -> Any:
    """A value per channel, which broadcasts to the input."""
    if array is None:
        return None
    return to_shape(engine, array, (array.size, *(1,) * (input.ndim - 2)))


def _statistics(engine: CLEngine, input: Array) -> tuple[Array, Array]:
    """The mean and the (biased) variance of each channel."""
    count = input.size // max(input.shape[1], 1)
    if not count:
        raise ValueError("training needs at least one value of each channel")
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    counted = [scalar(engine, "count", count, type)]
    found = moments(engine, input, _reduced_dims(input), "$total / $count", counted, wide)
    mean, variance = (a.view(wide, (input.shape[1],)) for a in found)
    return mean, variance


def _update_running(
    engine: CLEngine, running: Any, value: Array, momentum: float, factor: float
) -> None:
    """running = running * (1 - momentum) + value * factor * momentum."""
    if running is None:
        return
    type = working(running.dtype)
    numbers = [Number("keep", 1 - momentum, type), Number("take", momentum * factor, type)]
    inputs = inputs_of(type, running=running, value=value)
    strided_kernels.compute(engine, "$running * $keep + $value * $take", inputs, numbers, running)


def _rstd(engine: CLEngine, variance: Array, eps: float, wide: numpy.dtype[Any]) -> Array:
    made = engine.alloc(variance.shape, wide)
    type = working(wide)
    inputs = [Input("variance", variance, type)]
    text = "1 / sqrt($variance + $eps)"
    return strided_kernels.compute(engine, text, inputs, [Number("eps", eps, type)], made)


def _apply(
    engine: CLEngine, input: Array, mean: Array, rstd: Array, weight: Any, bias: Any
) -> Array:
    """input * scale + shift, with a scale and a shift per channel."""
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    inputs = inputs_of(type, mean=mean, rstd=rstd, weight=weight, bias=bias)
    factor = "$rstd" if weight is None else "$rstd * $weight"
    start = "0" if bias is None else "$bias"
    scale, shift = (engine.alloc(mean.shape, wide) for _ in range(2))
    used = [i for i in inputs if i.name in ("rstd", "weight")]
    strided_kernels.compute(engine, factor, used, [], scale)
    strided_kernels.compute(engine, f"{start} - $mean * {factor}", inputs, [], shift)
    columns = {
        "scale": _per_channel(engine, scale, input),
        "shift": _per_channel(engine, shift, input),
    }
    made = engine.alloc_like(input, input.dtype)
    return strided_kernels.compute(
        engine, "$x * $scale + $shift", inputs_of(type, x=input, **columns), [], made
    )


@kernel("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    engine: CLEngine, input: Array, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    _reduced_dims(input)
    _check_shapes(input.shape[1], weight=weight, bias=bias, running_mean=running_mean,
             running_var=running_var)  # fmt: skip
    kind = statistics_dtype(input, weight, bias, running_mean, running_var)
    wide = dtypes.working(input.dtype)
    if training:
        mean, variance = _statistics(engine, input)
    elif running_mean is None or running_var is None:
        raise ValueError("outside of training, batch norm needs running_mean and running_var")
    else:
        mean, variance = running_mean, running_var
    rstd = _rstd(engine, variance, eps, wide)
    made = _apply(engine, input, mean, rstd, weight, bias)
    if not training:
        return made, *(engine.alloc((0,), kind) for _ in range(2))
    count = input.size // max(input.shape[1], 1)
    _update_running(engine, running_mean, mean, momentum, 1)
    _update_running(engine, running_var, variance, momentum, count / max(count - 1, 1))
    return made, engine.cast(mean, kind), engine.cast(rstd, kind)


@kernel("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    engine: CLEngine,
    input: Array,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    return batch_norm(engine, input, weight, bias, None, None, training, momentum, eps)


@kernel("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    engine: CLEngine, input: Array, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    return batch_norm(engine, input, weight, bias, running_mean, running_var, False, momentum, eps)


@kernel("_batch_norm_with_update")
def batch_norm_with_update(
    engine: CLEngine, input: Array, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    found = batch_norm(engine, input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *found, engine.alloc((0,), numpy.dtype(numpy.uint8))


@kernel("native_batch_norm_backward")
def batch_norm_backward(
    engine: CLEngine, grad_out: Array, input: Array, weight: Any, running_mean: Any,
    running_var: Any, save_mean: Any, save_invstd: Any, train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    over = _reduced_dims(input)
    rstd = save_invstd if train else _rstd(engine, running_var, eps, wide)
    columns = {
        "mean": _per_channel(engine, save_mean if train else running_mean, input),
        "rstd": _per_channel(engine, rstd, input),
    }
    inputs = inputs_of(type, grad=grad_out, x=input, **columns)
    texts = ["$grad", "$grad * ($x - $mean) * $rstd"]
    added, along = sum_together(engine, texts, inputs, input.shape, over, wide, True)
    made = None
    if output_mask[0]:
        inputs += inputs_of(type, weight=_per_channel(engine, weight, input))
        made = _slope(engine, input, inputs, added, along, train)
    kind = input.dtype if weight is None else weight.dtype
    return made, *(
        engine.cast(found.view(wide, (input.shape[1],)), kind) if wanted else None
        for wanted, found in zip(output_mask[1:], (along, added), strict=True)
    )


def _slope(
    engine: CLEngine, input: Array, inputs: Any, added: Array, along: Array, train: bool
) -> Array:
    """The gradient of the input; outside of training the statistics are constants."""
    type = inputs[0].type
    made = engine.alloc_like(input, input.dtype)
    scale = "$rstd * $weight" if any(i.name == "weight" for i in inputs) else "$rstd"
    if not train:
        used = [i for i in inputs if i.name not in ("x", "mean")]
        return strided_kernels.compute(engine, f"$grad * {scale}", used, [], made)
    share = [Number("share", 1 / max(input.size // max(input.shape[1], 1), 1), type)]
    inputs = [*inputs, *inputs_of(type, added=added, along=along)]
    text = f"($grad - $added * $share - ($x - $mean) * $rstd * ($along * $share)) * {scale}"
    return strided_kernels.compute(engine, text, inputs, share, made)


@kernel("batch_norm_backward")
def batch_norm_backward_with_reserve(
    engine: CLEngine, grad_out: Array, input: Array, weight: Any, running_mean: Any,
    running_var: Any, save_mean: Any, save_var: Any, update: bool, eps: float, output_mask: Any,
    reserve: Any,
) -> Any:  # fmt: skip
    return batch_norm_backward(
        engine, grad_out, input, weight, running_mean, running_var, save_mean, save_var, update,
        eps, output_mask,
    )  # fmt: skip
