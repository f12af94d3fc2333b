"""Layer, group and RMS normalization, and their gradients.

Packed rows have kernels of their own (`row_kernels`); other layouts use reductions and elementwise
passes. Narrow floats are computed in float32 and rounded once; gradients of weights are summed in
a fixed order.
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
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, working
from holdfast.compute.ops.layers.normalize import statistics_dtype

RSTD = "1 / sqrt($total / $count + $eps)"


def sum_together(
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


def _leading_dims(input: Array, normalized_shape: Any) -> int:
    """How many dimensions precede the normalized ones."""
    shape = tuple(normalized_shape)
    lead = input.ndim - len(shape)
    if lead < 0 or input.shape[lead:] != shape or not shape:
        raise ValueError(f"the last sizes of the input are not the normalized shape {list(shape)}")
    return lead


def _outer(input: Array, lead: int) -> tuple[int, ...]:
    return (*input.shape[:lead], *(1,) * (input.ndim - lead))


@kernel("native_layer_norm")
def layer_norm(
    engine: CLEngine, input: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    lead = _leading_dims(input, normalized_shape)
    outer, kind = _outer(input, lead), statistics_dtype(input, weight, bias)
    if not input.size:
        return engine.alloc(input.shape, input.dtype), *(
            make_full(engine, outer, kind) for _ in range(2)
        )
    columns = math.prod(input.shape[lead:])
    found = row_kernels.normalize(engine, input, columns, weight, bias, eps)
    if found is None:
        found = _layer_norm(engine, input, lead, weight, bias, eps)
    return found[0], *(engine.cast(f, kind).view(kind, outer) for f in found[1:])


def _layer_norm(
    engine: CLEngine, input: Array, lead: int, weight: Any, bias: Any, eps: float
) -> Any:
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    over = tuple(range(lead, input.ndim))
    numbers = [
        scalar(engine, "count", math.prod(input.shape[lead:]), type),
        scalar(engine, "eps", eps, type),
    ]
    mean, rstd = moments(engine, input, over, RSTD, numbers, wide)
    return affine(engine, input, mean, rstd, weight, bias), mean, rstd


def affine(engine: CLEngine, input: Array, mean: Any, rstd: Array, weight: Any, bias: Any) -> Array:
    """(input - mean) * rstd * weight + bias, without those that are None."""
    text = "($input - $mean) * $rstd" if mean is not None else "$input * $rstd"
    text += "" if weight is None else " * $weight"
    text += "" if bias is None else " + $bias"
    inputs = inputs_of(
        working(input.dtype), input=input, mean=mean, rstd=rstd, weight=weight, bias=bias
    )
    return strided_kernels.compute(engine, text, inputs, [], engine.alloc(input.shape, input.dtype))


@kernel("native_layer_norm_backward")
def layer_norm_backward(
    engine: CLEngine, grad_out: Array, input: Array, normalized_shape: Any, mean: Array,
    rstd: Array, weight: Any, bias: Any, output_mask: Any,
) -> Any:  # fmt: skip
    lead = _leading_dims(input, normalized_shape)
    mean, rstd = (to_shape(engine, a, _outer(input, lead)) for a in (mean, rstd))
    return _gradients(
        engine, grad_out, input, lead, mean, rstd, weight, (weight, bias), output_mask
    )


def _gradients(
    engine: CLEngine,
    grad: Array,
    input: Array,
    lead: int,
    mean: Any,
    rstd: Array,
    weight: Any,
    like: Any,
    mask: Any,
) -> tuple[Any, ...]:
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
    """The gradient of the input of a layer or RMS norm."""
    type, wide = inputs[0].type, dtypes.working(input.dtype)
    over = tuple(range(lead, input.ndim))
    scaled = "$grad * $weight" if any(i.name == "weight" for i in inputs) else "$grad"
    count = [scalar(engine, "count", max(math.prod(input.shape[lead:]), 1), type)]
    centred = any(i.name == "mean" for i in inputs)
    values = [f"{scaled} * {normal}", *([scaled] if centred else [])]
    found = sum_together(
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
    lead = _leading_dims(input, normalized_shape)
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
    return affine(engine, input, None, rstd, weight, None), rstd


@kernel("_fused_rms_norm_backward")
def rms_norm_backward(
    engine: CLEngine,
    grad_out: Array,
    input: Array,
    normalized_shape: Any,
    rstd: Array,
    weight: Any,
    output_mask: Any,
) -> Any:
    lead = _leading_dims(input, normalized_shape)
    rstd = to_shape(engine, rstd, _outer(input, lead))
    return _gradients(engine, grad_out, input, lead, None, rstd, weight, (weight,), output_mask)


# ---- group norm


@kernel("native_group_norm")
def group_norm(
    engine: CLEngine,
    input: Array,
    weight: Any,
    bias: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> Any:
    if C % group:
        raise ValueError(f"{C} channels do not make {group} equal groups")
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
        found = _group_norm(engine, input, weight, bias, (N, group, C // group, HxW), eps)
    made, mean, rstd = found
    mean, rstd = (engine.cast(f.view(wide, statistics), kind) for f in (mean, rstd))
    return made.view(input.dtype, input.shape), mean, rstd


def _group_norm(
    engine: CLEngine, input: Array, weight: Any, bias: Any, shape: tuple[int, ...], eps: float
) -> Any:
    type, wide = working(input.dtype), dtypes.working(input.dtype)
    values = to_shape(engine, input, shape)
    numbers = [scalar(engine, "count", shape[2] * shape[3], type), scalar(engine, "eps", eps, type)]
    mean, rstd = moments(engine, values, (2, 3), RSTD, numbers, wide)
    factors = (
        None if p is None else to_shape(engine, p, (shape[1], shape[2], 1)) for p in (weight, bias)
    )
    return affine(engine, values, mean, rstd, *factors), mean, rstd


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
    added, along = sum_together(engine, texts, large[:4], shape, (3,), wide, True)
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
        middle, inner = sum_together(
            engine, texts, both, added.shape, (2,), wide, True, "$total / $count", count
        )
        text = f"($grad{scaled} - $middle - ($x - $mean) * $rstd * $inner) * $rstd"
        large += inputs_of(type, middle=middle, inner=inner)
        made = strided_kernels.compute(engine, text, large, [], engine.alloc(shape, input.dtype))
        made = made.view(input.dtype, input.shape)
    return made, *slopes
