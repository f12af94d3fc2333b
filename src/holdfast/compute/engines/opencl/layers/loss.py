"""Elementwise losses and negative log likelihood, with their gradients.

Computed in float32 or wider, without waiting for the device: a probability outside of 0 to 1, or a
target without a class, gives nan where the NumPy engine raises. `reduction` is ATen's: 0 none, 1
mean, 2 sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, Number, inputs_of
from holdfast.compute.engines.opencl.layout.views import to_shape
from holdfast.compute.engines.opencl.reduce.reduce import reduce_one, scalar
from holdfast.compute.engines.opencl.reduce.reduction import ReduceOutput, reduce
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import kernel, register, storage, working
from holdfast.compute.ops.layers.loss import MEAN, NONE, check_reduction, class_axis

# ---- shared


def _dtypes(*arrays: Any) -> tuple[numpy.dtype[Any], numpy.dtype[Any]]:
    """The dtype of the result, and the working dtype."""
    kind = dtypes.result_type(*(a for a in arrays if a is not None))
    return kind, dtypes.working(dtypes.with_fractions(kind))


def _shape(inputs: Sequence[Input]) -> tuple[int, ...]:
    return numpy.broadcast_shapes(*(i.array.shape for i in inputs))


def _reduce_loss(
    engine: CLEngine, text: str, inputs: list[Input], numbers: list[Number], reduction: int,
    kind: numpy.dtype[Any],
) -> Array:  # fmt: skip
    """The values of an expression, their mean or their sum."""
    check_reduction(reduction)
    shape, type = _shape(inputs), inputs[0].type
    if reduction == NONE:
        return strided_kernels.compute(engine, text, inputs, numbers, engine.alloc(shape, kind))
    over, finish = tuple(range(len(shape))), "$total"
    if reduction == MEAN:
        numbers = [*numbers, scalar(engine, "count", math.prod(shape), type)]
        finish = "$total / $count"
    return reduce_one(engine, "sum", text, inputs, over, False, kind, type, numbers, finish)


def _loss_gradient(
    engine: CLEngine, text: str, grad: Array, inputs: list[Input], numbers: list[Number],
    reduction: int, kind: Any,
) -> Array:  # fmt: skip
    """The gradient of each element: a slope times the gradient of the reduced loss."""
    shape, type = _shape(inputs), inputs[0].type
    each = "$grad"
    if reduction == MEAN:
        each = "($grad / $size)"
        numbers = [*numbers, Number("size", max(math.prod(shape), 1), type)]
    inputs = [*inputs, Input("grad", grad, type)]
    made = engine.alloc(_shape(inputs), kind)
    return strided_kernels.compute(engine, f"({text}) * {each}", inputs, numbers, made)


# ---- losses of self - target, which may have a parameter

_APART = "($self - $target)"
_FAR = f"fabs{_APART}"
_HUBER = f"fmin({_FAR}, $setting) * ({_FAR} - fmin({_FAR}, $setting) / 2)"
_HUBER_SLOPE = f"({_APART} > $setting ? $setting : {_APART} < -$setting ? -$setting : {_APART})"
_SIGN = f"({_APART} > 0 ? 1 : {_APART} < 0 ? -1 : {_APART})"


def _texts(name: str, setting: Any) -> tuple[str, str]:
    if name == "mse_loss":
        return f"{_APART} * {_APART}", f"2 * {_APART}"
    if name == "huber_loss":
        return _HUBER, _HUBER_SLOPE
    if setting == 0:
        return _FAR, _SIGN
    return f"{_HUBER} / $setting", f"{_HUBER_SLOPE} / $setting"


def _register_loss(name: str, default: float | None) -> None:

    def put(self: Array, target: Array, setting: Any) -> tuple[Any, list[Input], list[Number]]:
        kind, wide = _dtypes(self, target)
        type = working(wide)
        numbers = [] if not setting else [Number("setting", setting, type)]
        return kind, inputs_of(type, self=self, target=target), numbers

    def forward(
        engine: CLEngine, self: Array, target: Array, reduction: int = MEAN, setting: Any = default
    ) -> Array:
        kind, inputs, numbers = put(self, target, setting)
        return _reduce_loss(engine, _texts(name, setting)[0], inputs, numbers, reduction, kind)

    def backward(
        engine: CLEngine, grad_output: Array, self: Array, target: Array, reduction: int,
        setting: Any = default,
    ) -> Array:  # fmt: skip
        kind, inputs, numbers = put(self, target, setting)
        slope = _texts(name, setting)[1]
        return _loss_gradient(engine, slope, grad_output, inputs, numbers, reduction, kind)

    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


_register_loss("mse_loss", None)
_register_loss("smooth_l1_loss", 1.0)
_register_loss("huber_loss", 1.0)


def _softplus(value: str) -> str:
    """log(1 + exp(value)), without overflow."""
    return "(($0 > 0 ? $0 : 0) + log1p(exp(-fabs($0))))".replace("$0", f"({value})")


# ---- binary cross entropy


@kernel("binary_cross_entropy")
def binary_cross_entropy(
    engine: CLEngine, self: Array, target: Array, weight: Any = None, reduction: int = MEAN
) -> Array:
    kind, wide = _dtypes(self, target, weight)
    inputs = inputs_of(working(wide), self=self, target=target, weight=weight)
    low = f"({working(wide)})-100"
    text = f"(($target - 1) * fmax(log1p(-$self), {low}) - $target * fmax(log($self), {low}))"
    text = f"($self >= 0 && $self <= 1 ? {text} : NAN)" + ("" if weight is None else " * $weight")
    return _reduce_loss(engine, text, inputs, [], reduction, kind)


@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    engine: CLEngine, grad_output: Array, self: Array, target: Array, weight: Any = None,
    reduction: int = MEAN,
) -> Array:  # fmt: skip
    kind, wide = _dtypes(self, target, weight)
    inputs = inputs_of(working(wide), self=self, target=target, weight=weight)
    text = f"($self - $target) / fmax((1 - $self) * $self, ({working(wide)})1e-12)"
    text += "" if weight is None else " * $weight"
    return _loss_gradient(engine, text, grad_output, inputs, [], reduction, kind)


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    engine: CLEngine, self: Array, target: Array, weight: Any = None, pos_weight: Any = None,
    reduction: int = MEAN,
) -> Array:  # fmt: skip
    kind, wide = _dtypes(self, target, weight, pos_weight)
    arrays = {"self": self, "target": target, "weight": weight, "positive": pos_weight}
    inputs = inputs_of(working(wide), **arrays)
    factor = "" if pos_weight is None else "(($positive - 1) * $target + 1) * "
    text = f"((1 - $target) * $self + {factor}{_softplus('-$self')})"
    text += "" if weight is None else " * $weight"
    return _reduce_loss(engine, text, inputs, [], reduction, kind)


# ---- negative log likelihood


def _nll(
    spatial: bool, engine: CLEngine, self: Array, target: Array, weight: Any, reduction: int,
    ignore_index: int,
) -> Any:  # fmt: skip
    axis = class_axis(self, target, weight, spatial)
    outer, inner = (math.prod(part) for part in (self.shape[:axis], self.shape[axis + 1 :]))
    wide = dtypes.working(self.dtype)
    losses, counts = (engine.alloc(target.shape, wide) for _ in range(2))
    defines = {"WORD": storage(self.dtype), "REAL": working(wide), "CLASS": storage(target.dtype)}
    if weight is not None:
        defines |= {"HAS_WEIGHT": 1, "WEIGHT": storage(weight.dtype)}
    arrays = [engine.contiguous(a) for a in (self, target, weight) if a is not None]
    if losses.size:
        call = engine.kernel("loss", "nll", **defines)
        sizes = (outer, self.shape[axis], inner, ignore_index)
        engine.launch(call, (losses.size,), None, *arrays, losses, counts, *sizes)
    if reduction == NONE:
        return engine.cast(losses, self.dtype), engine.upload(numpy.zeros((), self.dtype))
    return _totals(engine, losses, counts, reduction, self.dtype)


def _totals(
    engine: CLEngine, losses: Array, counts: Array, reduction: int, kind: numpy.dtype[Any]
) -> Any:
    """The sum or the weighted mean of the losses, and the total weight."""
    type, wide = working(losses.dtype), losses.dtype
    loss, count = (engine.alloc((), wide) for _ in range(2))
    parts = [ReduceOutput("sum", "$loss", type, loss), ReduceOutput("sum", "$count", type, count)]
    over = tuple(range(losses.ndim))
    reduce(engine, parts, inputs_of(type, loss=losses, count=counts), [], losses.shape, over)
    made = engine.alloc((), kind)
    text = "$loss / $count" if reduction == MEAN else "$loss"
    used = inputs_of(type, loss=loss, count=count)[: 2 if reduction == MEAN else 1]
    return strided_kernels.compute(engine, text, used, [], made), engine.cast(count, kind)


def _nll_backward(spatial: bool, engine: CLEngine, *args: Any) -> Array:
    grad_output, self, target, weight, reduction, ignore_index, total_weight = args
    axis = class_axis(self, target, weight, spatial)
    many, type = self.shape[axis], working(self.dtype)
    around = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
    tail = (1,) * (self.ndim - axis - 1)

    def column(array: Array) -> Array:
        return to_shape(engine, array, (many, *tail))

    grad = to_shape(engine, grad_output, around) if grad_output.ndim else grad_output
    inputs = [
        Input("target", to_shape(engine, target, around), "long"),
        Input("place", column(engine.upload(numpy.arange(many))), "long"),
        Input("grad", grad, type),
    ]
    slope = "-$grad"
    if weight is not None:
        inputs.append(Input("weight", column(weight), type))
        slope += " * $weight"
    if reduction == MEAN:
        inputs.append(Input("total", total_weight, type))
        slope += " / $total"
    text = f"$target == $place && $target != $ignored ? {slope} : 0"
    numbers = [Number("ignored", ignore_index, "long")]
    return strided_kernels.compute(
        engine, text, inputs, numbers, engine.alloc(self.shape, self.dtype)
    )


for _name, _spatial in (("nll_loss", False), ("nll_loss2d", True)):
    register(f"{_name}_forward", functools.partial(_nll, _spatial))
    register(f"{_name}_backward", functools.partial(_nll_backward, _spatial))
