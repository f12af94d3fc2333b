"""Layer, group, RMS and batch normalization, and their gradients.

Packed rows have kernels of their own (`row_kernels`); other layouts use reductions and elementwise
passes. Narrow floats are computed in float32 and rounded once; gradients of weights are summed in
a fixed order. Running statistics are updated in place, in training only, after everything else was
computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, inputs_of
from holdfast.compute.engines.opencl.layout.views import make_full, to_shape
from holdfast.compute.engines.opencl.reduce import row_kernels
from holdfast.compute.engines.opencl.reduce.moments import moments
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one, reduced_shape, scalar
from holdfast.compute.engines.opencl.reduce.reduction import ReduceOutput, reduce
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, working
from holdfast.compute.ops.layers.normalize import (
    check_batch_norm,
    leading_dims,
    other_forms,
    statistics_dtype,
)

RSTD = "1 / sqrt($total / $count + $eps)"


def _sum_together(
    engine: CLEngine, values: Sequence[str], inputs: Sequence[Input], shape: Any, over: Any,
    kind: Any, keepdim: bool, finish: str = "$total", numbers: Sequence[Number] = (),
) -> list[Array]:  # fmt: skip
    """Several sums over the same elements, which are read once."""
    outs = [engine.alloc(reduced_shape(shape, over, False), kind) for _ in values]
    type = inputs[0].type
    parts = [ReduceOutput("sum", v, type, out, finish) for v, out in zip(values, outs, strict=True)]
    reduce(engine, parts, inputs, numbers, tuple(shape), over)
    return [out.view(kind, reduced_shape(shape, over, keepdim)) for out in outs]


# ---- layer norm


def _outer(input: Array, lead: int) -> tuple[int, ...]:
    return (*input.shape[:lead], *(1,) * (input.ndim - lead))


@kernel("native_layer_norm")
def layer_norm(
    engine: CLEngine, input: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    lead = leading_dims(input, normalized_shape)
    outer, kind = _outer(input, lead), statistics_dtype(input, weight, bias)
    if not input.size:
        return engine.alloc(input.shape, input.dtype), *(
            make_full(engine, outer, kind) for _ in range(2)
        )
    columns = math.prod(input.shape[lead:])
    found = row_kernels.normalize(engine, input, columns, weight, bias, eps)
    if found is None:
        over = tuple(range(lead, input.ndim))
        found = _normalize(engine, input, over, weight, bias, eps)
    return found[0], *(engine.cast(f, kind).view(kind, outer) for f in found[1:])


def _normalize(
    engine: CLEngine, values: Array, over: tuple[int, ...], weight: Any, bias: Any, eps: float
) -> Any:
    """Normalized values, means and deviations, by reductions over dimensions."""
    type, count = working(values.dtype), math.prod(values.shape[d] for d in over)
    numbers = [scalar(engine, "count", count, type), scalar(engine, "eps", eps, type)]
    mean, rstd = moments(engine, values, over, RSTD, numbers, dtypes.working(values.dtype))
    return _affine(engine, values, mean, rstd, weight, bias), mean, rstd


def _affine(
    engine: CLEngine, input: Array, mean: Any, rstd: Array, weight: Any, bias: Any,
    made: Array | None = None,
) -> Array:  # fmt: skip
    """(input - mean) * rstd * weight + bias, without those that are None."""
    text = "($input - $mean) * $rstd" if mean is not None else "$input * $rstd"
    text += "" if weight is None else " * $weight"
    text += "" if bias is None else " + $bias"
    inputs = inputs_of(
        working(input.dtype), input=input, mean=mean, rstd=rstd, weight=weight, bias=bias
    )
    made = engine.alloc(input.shape, input.dtype) if made is None else made
    return strided_kernels.compute(engine, text, inputs, [], made)


@kernel("native_layer_norm_backward")
def layer_norm_backward(
    engine: CLEngine, grad_out: Array, input: Array, normalized_shape: Any, mean: Array,
    rstd: Array, weight: Any, bias: Any, output_mask: Any,
) -> Any:  # fmt: skip
    lead = leading_dims(input, normalized_shape)
    mean, rstd = (to_shape(engine, a, _outer(input, lead)) for a in (mean, rstd))
    return _gradients(
        engine, grad_out, input, lead, mean, rstd, weight, (weight, bias), output_mask
    )


def _gradients(
    engine: CLEngine, grad: Array, input: Array, lead: int, mean: Any, rstd: Array, weight: Any,
    like: Any, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of the input, and of what is `like` the weight and the bias. No mean: RMS norm."""
    type = working(input.dtype)
    inputs = inputs_of(type, grad=grad, x=input, mean=mean, rstd=rstd)
    normal = "$x * $rstd" if mean is None else "($x - $mean) * $rstd"
    made = None
    if mask[0]:
        made = _input_gradient(
            engine, input, lead, [*inputs, *inputs_of(type, weight=weight)], normal
        )
    over = tuple(range(lead))
    values = {1: f"$grad * {normal}", 2: "$grad"}
    outs = [
        ReduceOutput("sum", values[n], type, engine.alloc(of.shape, of.dtype))
        if mask[n] and of is not None
        else None
        for n, of in enumerate(like, 1)
    ]
    parts = [part for part in outs if part is not None]
    if parts:
        reduce(engine, parts, inputs, [], input.shape, over)
    return made, *(None if part is None else part.out for part in outs)


def _input_gradient(
    engine: CLEngine, input: Array, lead: int, inputs: list[Input], normal: str
) -> Array:
    type, wide = inputs[0].type, dtypes.working(input.dtype)
    over = tuple(range(lead, input.ndim))
    scaled = "$grad * $weight" if any(i.name == "weight" for i in inputs) else "$grad"
    count = [scalar(engine, "count", max(math.prod(input.shape[lead:]), 1), type)]
    centred = any(i.name == "mean" for i in inputs)
    values = [f"{scaled} * {normal}", *([scaled] if centred else [])]
    found = _sum_together(
        engine, values, inputs, input.shape, over, wide, True, "$total / $count", count
    )
    along = inputs_of(type, **dict(zip(("along", "added"), found, strict=False)))
    less = " - $added" if centred else ""
    text = f"({scaled}{less} - {normal} * $along) * $rstd"
    return strided_kernels.compute(
        engine, text, [*inputs, *along], [], engine.alloc(input.shape, input.dtype)
    )


# ---- RMS norm


@kernel("_fused_rms_norm")
def rms_norm(engine: CLEngine, input: Array, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    lead = leading_dims(input, normalized_shape)
    outer, wide = _outer(input, lead), dtypes.working(input.dtype)
    if not input.size:
        return engine.alloc(input.shape, input.dtype), make_full(engine, outer, wide)
    small = float(numpy.finfo(wide).eps) if eps is None else eps
    columns = math.prod(input.shape[lead:])
    found = row_kernels.normalize(engine, input, columns, weight, None, small, rms=True)
    if found is not None:
        return found[0], found[2].view(wide, outer)
    type = working(input.dtype)
    numbers = [scalar(engine, "count", columns, type), scalar(engine, "eps", small, type)]
    over, inputs = tuple(range(lead, input.ndim)), inputs_of(type, x=input)
    rstd = reduce_one(engine, "sum", "$x * $x", inputs, over, True, wide, type, numbers, RSTD)
    return _affine(engine, input, None, rstd, weight, None), rstd


@kernel("_fused_rms_norm_backward")
def rms_norm_backward(
    engine: CLEngine, grad_out: Array, input: Array, normalized_shape: Any, rstd: Array,
    weight: Any, output_mask: Any,
) -> Any:  # fmt: skip
    lead = leading_dims(input, normalized_shape)
    rstd = to_shape(engine, rstd, _outer(input, lead))
    return _gradients(engine, grad_out, input, lead, None, rstd, weight, (weight,), output_mask)


# ---- group norm


@kernel("native_group_norm")
def group_norm(
    engine: CLEngine, input: Array, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int,
    eps: float,
) -> Any:  # fmt: skip
    kind, wide = statistics_dtype(input, weight, bias), dtypes.working(input.dtype)
    columns, statistics = C // group * HxW, (N, group)
    if not input.size:
        rstd = numpy.full(statistics, 1 / math.sqrt(eps) if eps else math.inf).astype(kind)
        return (
            engine.alloc(input.shape, input.dtype),
            make_full(engine, statistics, kind),
            engine.upload(rstd),
        )
    found = row_kernels.normalize(
        engine, input, columns, weight, bias, eps, groups=group, span=max(HxW, 1)
    )
    if found is None:
        values = to_shape(engine, input, (N, group, C // group, HxW))
        weight, bias = (
            None if p is None else to_shape(engine, p, (group, C // group, 1))
            for p in (weight, bias)
        )
        found = _normalize(engine, values, (2, 3), weight, bias, eps)
    made, mean, rstd = found
    mean, rstd = (engine.cast(f.view(wide, statistics), kind) for f in (mean, rstd))
    return made.view(input.dtype, input.shape), mean, rstd


@kernel("native_group_norm_backward")
def group_norm_backward(
    engine: CLEngine, grad_out: Array, input: Array, mean: Array, rstd: Array, weight: Any,
    N: int, C: int, HxW: int, group: int, output_mask: Any,
) -> Any:  # fmt: skip
    shape = (N, group, C // group, HxW)
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    grad, values = (to_shape(engine, a, shape) for a in (grad_out, input))
    mean, rstd = (to_shape(engine, a, (N, group, 1, 1)) for a in (mean, rstd))
    factor = None if weight is None else to_shape(engine, weight, (group, C // group, 1))
    large = inputs_of(type, grad=grad, x=values, mean=mean, rstd=rstd, weight=factor)
    # Every gradient needs only sums over positions of the large arrays.
    texts = ["$grad", "$grad * ($x - $mean) * $rstd"]
    added, along = _sum_together(engine, texts, large[:4], shape, (3,), wide, True)
    small = inputs_of(type, added=added, along=along)
    kind = input.dtype if weight is None else weight.dtype
    slopes = [
        reduce_one(engine, "sum", text, [one], (0,), False, kind, type).view(kind, (C,))
        if wanted
        else None
        for wanted, text, one in zip(
            output_mask[1:], ("$along", "$added"), small[::-1], strict=True
        )
    ]
    made = None
    if output_mask[0]:
        scaled = " * $weight" if weight is not None else ""
        count = [scalar(engine, "count", max(C // group * HxW, 1), type)]
        both = [*small, *inputs_of(type, weight=factor)]
        texts = [f"$added{scaled}", f"$along{scaled}"]
        middle, inner = _sum_together(
            engine, texts, both, added.shape, (2,), wide, True, "$total / $count", count
        )
        text = f"($grad{scaled} - $middle - ($x - $mean) * $rstd * $inner) * $rstd"
        large += inputs_of(type, middle=middle, inner=inner)
        made = strided_kernels.compute(engine, text, large, [], engine.alloc(shape, input.dtype))
        made = made.view(input.dtype, input.shape)
    return made, *slopes


# ---- batch norm


def _reduced_dims(input: Array) -> tuple[int, ...]:
    return (0, *range(2, input.ndim))


def _per_channel(engine: CLEngine, array: Any, input: Array) -> Any:
    """A value per channel, which broadcasts to the input."""
    if array is None:
        return None
    return to_shape(engine, array, (array.size, *(1,) * (input.ndim - 2)))


def _statistics(engine: CLEngine, input: Array) -> tuple[Array, Array]:
    """The mean and the (biased) variance of each channel."""
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    counted = [scalar(engine, "count", input.size // max(input.shape[1], 1), type)]
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


@kernel("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    engine: CLEngine, input: Array, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    check_batch_norm(input, weight, bias, running_mean, running_var, training)
    kind = statistics_dtype(input, weight, bias, running_mean, running_var)
    wide = dtypes.working(input.dtype)
    mean, variance = _statistics(engine, input) if training else (running_mean, running_var)
    rstd = _rstd(engine, variance, eps, wide)
    columns = (_per_channel(engine, a, input) for a in (mean, rstd, weight, bias))
    made = _affine(engine, input, *columns, made=engine.alloc_like(input, input.dtype))
    if not training:
        return made, *(engine.alloc((0,), kind) for _ in range(2))
    count = input.size // max(input.shape[1], 1)
    _update_running(engine, running_mean, mean, momentum, 1)
    _update_running(engine, running_var, variance, momentum, count / max(count - 1, 1))
    return made, engine.cast(mean, kind), engine.cast(rstd, kind)


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
    added, along = _sum_together(engine, texts, inputs, input.shape, over, wide, True)
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


_RESERVE = numpy.dtype(numpy.uint8)  # of an empty array
_FORMS = other_forms(batch_norm, batch_norm_backward, lambda engine: engine.alloc((0,), _RESERVE))
for _name, _form in _FORMS.items():
    register(_name, _form)
