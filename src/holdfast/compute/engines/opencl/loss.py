"""Losses that compare number by number, the loss of classes, and their gradients.

Covers: squared, smooth and absolute distances, soft margins, binary cross entropy, negative log
likelihood.
Leaves to others: margins of several classes, ctc (the host).
Promise: computed in float32 or wider, without waiting for the device: a probability outside of 0
to 1, or a target that names no class, gives nan where the NumPy engine raises. `reduction` is
ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array
from holdfast.compute.engines.opencl.elementwise import Input, Number, inputs_of
from holdfast.compute.engines.opencl.kernels import kernel, storage, working
from holdfast.compute.engines.opencl.reduce import joined, number
from holdfast.compute.engines.opencl.reducing import Part, reduce
from holdfast.compute.engines.opencl.views import shaped
from holdfast.compute.ops.loss import MEAN, NONE, SUM

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

# ---- what they share


def _wide(*arrays: Any) -> tuple[numpy.dtype[Any], numpy.dtype[Any]]:
    """The format of the result, and the one that is computed in."""
    kind = formats.result_type(*(a for a in arrays if a is not None))
    return kind, formats.working(formats.with_fractions(kind))


def _shape(inputs: Sequence[Input]) -> tuple[int, ...]:
    return numpy.broadcast_shapes(*(i.array.shape for i in inputs))


def _reduced(
    engine: OpenCLEngine,
    text: str,
    inputs: list[Input],
    numbers: list[Number],
    reduction: int,
    kind: numpy.dtype[Any],
) -> Array:
    """All values of an expression, their mean or their sum."""
    shape, type = _shape(inputs), inputs[0].type
    if reduction == NONE:
        return elementwise.compute(engine, text, inputs, numbers, engine.alloc(shape, kind))
    if reduction not in (MEAN, SUM):
        raise ValueError(f"reduction {reduction} is unknown; 0 is none, 1 is mean, 2 is sum")
    over, finish = tuple(range(len(shape))), "$total"
    if reduction == MEAN:
        numbers, finish = (
            [*numbers, number(engine, "count", math.prod(shape), type)],
            "$total / $count",
        )
    return joined(engine, "sum", text, inputs, over, False, kind, type, numbers, finish)


def _sloped(
    engine: OpenCLEngine,
    text: str,
    grad: Array,
    inputs: list[Input],
    numbers: list[Number],
    reduction: int,
    kind: Any,
) -> Array:
    """A slope times the gradient of each number, out of that of the reduced loss."""
    shape, type = _shape(inputs), inputs[0].type
    each = "$grad"
    if reduction == MEAN:
        each = "($grad / $size)"
        numbers = [*numbers, Number("size", max(math.prod(shape), 1), type)]
    inputs = [*inputs, Input("grad", grad, type)]
    made = engine.alloc(_shape(inputs), kind)
    return elementwise.compute(engine, f"({text}) * {each}", inputs, numbers, made)


# ---- losses of a distance, which may have a setting

_APART = "($self - $target)"
_FAR = f"fabs{_APART}"
_HUBER = f"fmin({_FAR}, $setting) * ({_FAR} - fmin({_FAR}, $setting) / 2)"
_HUBER_SLOPE = f"({_APART} > $setting ? $setting : {_APART} < -$setting ? -$setting : {_APART})"
_SIGN = f"({_APART} > 0 ? 1 : {_APART} < 0 ? -1 : {_APART})"


def _texts(name: str, setting: Any) -> tuple[str, str]:
    """A loss and its slope."""
    if name == "mse_loss":
        return f"{_APART} * {_APART}", f"2 * {_APART}"
    if name == "huber_loss":
        return _HUBER, _HUBER_SLOPE
    if setting == 0:
        return _FAR, _SIGN
    return f"{_HUBER} / $setting", f"{_HUBER_SLOPE} / $setting"


def _loss(name: str, default: float | None) -> None:
    """Put a loss of (self - target) and its backward among the kernels."""

    def put(self: Array, target: Array, setting: Any) -> tuple[Any, list[Input], list[Number]]:
        kind, wide = _wide(self, target)
        type = working(wide)
        numbers = [] if not setting else [Number("setting", setting, type)]
        return kind, inputs_of(type, self=self, target=target), numbers

    def forward(
        engine: OpenCLEngine,
        self: Array,
        target: Array,
        reduction: int = MEAN,
        setting: Any = default,
    ) -> Array:
        kind, inputs, numbers = put(self, target, setting)
        return _reduced(engine, _texts(name, setting)[0], inputs, numbers, reduction, kind)

    def backward(
        engine: OpenCLEngine,
        grad_output: Array,
        self: Array,
        target: Array,
        reduction: int,
        setting: Any = default,
    ) -> Array:
        kind, inputs, numbers = put(self, target, setting)
        slope = _texts(name, setting)[1]
        return _sloped(engine, slope, grad_output, inputs, numbers, reduction, kind)

    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


_loss("mse_loss", None)
_loss("smooth_l1_loss", 1.0)
_loss("huber_loss", 1.0)


def _softened(value: str) -> str:
    """log(1 + exp(value)), without overflow."""
    return "(($0 > 0 ? $0 : 0) + log1p(exp(-fabs($0))))".replace("$0", f"({value})")


@kernel("soft_margin_loss")
def soft_margin_loss(
    engine: OpenCLEngine, self: Array, target: Array, reduction: int = MEAN
) -> Array:
    kind, wide = _wide(self, target)
    inputs = inputs_of(working(wide), self=self, target=target)
    return _reduced(engine, _softened("-$target * $self"), inputs, [], reduction, kind)


@kernel("soft_margin_loss_backward")
def soft_margin_loss_backward(
    engine: OpenCLEngine, grad_output: Array, self: Array, target: Array, reduction: int
) -> Array:
    kind, wide = _wide(self, target)
    inputs = inputs_of(working(wide), self=self, target=target)
    return _sloped(
        engine, "-$target / (1 + exp($target * $self))", grad_output, inputs, [], reduction, kind
    )


# ---- binary cross entropy


def _alike(self: Array, target: Array) -> None:
    if self.shape != target.shape:
        raise ValueError("input and target of a binary cross entropy have different shapes")


@kernel("binary_cross_entropy")
def binary_cross_entropy(
    engine: OpenCLEngine, self: Array, target: Array, weight: Any = None, reduction: int = MEAN
) -> Array:
    _alike(self, target)
    kind, wide = _wide(self, target, weight)
    inputs = inputs_of(working(wide), self=self, target=target, weight=weight)
    low = f"({working(wide)})-100"
    text = f"(($target - 1) * fmax(log1p(-$self), {low}) - $target * fmax(log($self), {low}))"
    text = f"($self >= 0 && $self <= 1 ? {text} : NAN)" + ("" if weight is None else " * $weight")
    return _reduced(engine, text, inputs, [], reduction, kind)


@kernel("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    engine: OpenCLEngine,
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Any = None,
    reduction: int = MEAN,
) -> Array:
    kind, wide = _wide(self, target, weight)
    inputs = inputs_of(working(wide), self=self, target=target, weight=weight)
    text = f"($self - $target) / fmax((1 - $self) * $self, ({working(wide)})1e-12)"
    text += "" if weight is None else " * $weight"
    return _sloped(engine, text, grad_output, inputs, [], reduction, kind)


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    engine: OpenCLEngine,
    self: Array,
    target: Array,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = MEAN,
) -> Array:
    _alike(self, target)
    kind, wide = _wide(self, target, weight, pos_weight)
    arrays = {"self": self, "target": target, "weight": weight, "positive": pos_weight}
    inputs = inputs_of(working(wide), **arrays)
    factor = "" if pos_weight is None else "(($positive - 1) * $target + 1) * "
    text = f"((1 - $target) * $self + {factor}{_softened('-$self')})"
    text += "" if weight is None else " * $weight"
    return _reduced(engine, text, inputs, [], reduction, kind)


# ---- negative log likelihood


def _classes(self: Array, target: Array, weight: Any, spatial: bool) -> tuple[int, int, int, int]:
    """The dimension of classes, and sizes: before it, of it, after it."""
    axis = 1 if spatial or self.ndim == 2 else 0
    wanted = self.shape[:axis] + self.shape[axis + 1 :]
    if target.shape != wanted:
        raise ValueError(
            f"the target has shape {list(target.shape)}, the input asks for {list(wanted)}"
        )
    many = self.shape[axis]
    if weight is not None and weight.shape != (many,):
        raise ValueError(f"the weight has shape {list(weight.shape)}, for {many} classes")
    return axis, math.prod(self.shape[:axis]), many, math.prod(self.shape[axis + 1 :])


def _forward(
    engine: OpenCLEngine,
    spatial: bool,
    self: Array,
    target: Array,
    weight: Any,
    reduction: int,
    ignore_index: int,
) -> Any:
    _, outer, many, inner = _classes(self, target, weight, spatial)
    wide = formats.working(self.dtype)
    losses, counts = (engine.alloc(target.shape, wide) for _ in range(2))
    defines = {"WORD": storage(self.dtype), "REAL": working(wide), "CLASS": storage(target.dtype)}
    if weight is not None:
        defines |= {"HAS_WEIGHT": 1, "WEIGHT": storage(weight.dtype)}
    arrays = [engine.contiguous(a) for a in (self, target, weight) if a is not None]
    if losses.size:
        call = engine.kernel("loss", "nll", **defines)
        sizes = (outer, many, inner, ignore_index)
        engine.launch(call, (losses.size,), None, *arrays, losses, counts, *sizes)
    if reduction == NONE:
        return engine.cast(losses, self.dtype), engine.upload(numpy.zeros((), self.dtype))
    return _totals(engine, losses, counts, reduction, self.dtype)


def _totals(
    engine: OpenCLEngine, losses: Array, counts: Array, reduction: int, kind: numpy.dtype[Any]
) -> Any:
    """The loss of all, or their weighted mean, and what they count together."""
    type, wide = working(losses.dtype), losses.dtype
    loss, count = (engine.alloc((), wide) for _ in range(2))
    parts = [Part("sum", "$loss", type, loss), Part("sum", "$count", type, count)]
    over = tuple(range(losses.ndim))
    reduce(engine, parts, inputs_of(type, loss=losses, count=counts), [], losses.shape, over)
    made = engine.alloc((), kind)
    text = "$loss / $count" if reduction == MEAN else "$loss"
    used = inputs_of(type, loss=loss, count=count)[: 2 if reduction == MEAN else 1]
    return elementwise.compute(engine, text, used, [], made), engine.cast(count, kind)


def _backward(engine: OpenCLEngine, spatial: bool, *args: Any) -> Array:
    grad_output, self, target, weight, reduction, ignore_index, total_weight = args
    axis, _, many, _ = _classes(self, target, weight, spatial)
    type = working(self.dtype)
    around = (*self.shape[:axis], 1, *self.shape[axis + 1 :])
    tail = (1,) * (self.ndim - axis - 1)

    def column(array: Array) -> Array:
        return shaped(engine, array, (many, *tail))

    inputs = [
        Input("target", shaped(engine, target, around), "long"),
        Input("place", column(engine.upload(numpy.arange(many))), "long"),
        Input(
            "grad",
            grad_output if not grad_output.ndim else shaped(engine, grad_output, around),
            type,
        ),
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
    return elementwise.compute(engine, text, inputs, numbers, engine.alloc(self.shape, self.dtype))


@kernel("nll_loss_forward")
def nll_loss(engine: OpenCLEngine, *args: Any) -> Any:
    return _forward(engine, False, *args)


@kernel("nll_loss2d_forward")
def nll_loss2d(engine: OpenCLEngine, *args: Any) -> Any:
    return _forward(engine, True, *args)


@kernel("nll_loss_backward")
def nll_loss_backward(engine: OpenCLEngine, *args: Any) -> Array:
    return _backward(engine, False, *args)


@kernel("nll_loss2d_backward")
def nll_loss2d_backward(engine: OpenCLEngine, *args: Any) -> Array:
    return _backward(engine, True, *args)
