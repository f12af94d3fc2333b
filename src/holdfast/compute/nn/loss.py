"""Losses, with torch's arguments and values; `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["BCELoss", "BCEWithLogitsLoss", "CosineSimilarity", "CrossEntropyLoss", "HuberLoss"]
__all__ += ["KLDivLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss"]

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class _Loss(Layer):
    """A loss; its weights are buffers."""

    reductions: ClassVar[tuple[str, ...]] = tuple(_REDUCTIONS)
    reduction: str

    def build(self, kind: dict[str, Any]) -> None:
        old = self.take("size_average", "reduce")
        if old != [None, None]:
            raise BadInput(
                f"{type(self).__name__} was given size_average={old[0]}, reduce={old[1]}",
                expected='reduction="mean", "sum" or "none"',
            )
        if self.reduction not in self.reductions:
            raise BadInput(
                f"{type(self).__name__} has no reduction {self.reduction!r}",
                expected=f"one of {', '.join(self.reductions)}",
            )
        for name in ("weight", "pos_weight"):
            if name in vars(self):
                self.register_buffer(name, *self.take(name))

    @property
    def _reduction(self) -> int:
        return _REDUCTIONS[self.reduction]

    def _reduce(self, each: CustomTensor) -> CustomTensor:
        if self.reduction == "none":
            return each
        return F.mean(each) if self.reduction == "mean" else F.sum(each)

    def _check(self, input: CustomTensor, target: CustomTensor) -> None:
        """Raise BadInput unless the shapes are equal; torch only warns of what is mostly a
        mistake.
        """
        self._check_tensors(input, target)
        if tuple(input.shape) != tuple(target.shape):
            raise BadInput(
                f"{type(self).__name__} cannot compare {describe(input)} with {describe(target)}",
                expected="equal shapes",
                hint="reshape one of them, or expand it on purpose",
            )

    def _check_tensors(self, *given: Any) -> None:
        for one in given:
            self.check_tensor(one)


@layer
class _Unweighted(_Loss):
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"


class MSELoss(_Unweighted):
    """The mean of the squared differences."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.mse_loss(input, target, self._reduction)


class L1Loss(_Unweighted):
    """The mean of the absolute differences."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return self._reduce(F.abs(F.sub(input, target)))


@layer
class SmoothL1Loss(L1Loss):
    """Squared below `beta`, absolute above."""

    beta: float = 1.0

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        if self.beta == 0:
            return super().forward(input, target)
        self._check(input, target)
        return F.smooth_l1_loss(input, target, self._reduction, self.beta)


@layer
class HuberLoss(_Loss):
    """Squared below `delta`, absolute above: `delta` times SmoothL1Loss."""

    reduction: str = "mean"
    delta: float = 1.0

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.huber_loss(input, target, self._reduction, self.delta)


@layer
class _Weighted(_Loss):
    weight: Any = None
    size_average: Any = None
    reduce: Any = None
    reduction: str = "mean"


@layer
class _Classes(_Loss):
    """[batch, classes, ...] against class indices [batch, ...]."""

    targets: ClassVar[str] = "class indices of {}"
    weight: Any = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"

    def _check_classes(self, input: CustomTensor, target: CustomTensor) -> None:
        self._check_tensors(input, target)
        if dtypes.category(target.dtype) != dtypes.INTEGER:
            raise BadInput(
                f"{type(self).__name__} cannot take the classes {describe(target)}",
                expected="integers",
                hint="target.to('int64')",
            )
        shape = tuple(input.shape[:1] + input.shape[2:]) if input.ndim > 1 else ()
        if not input.ndim or tuple(target.shape) != shape:
            raise BadInput(
                f"{type(self).__name__} cannot compare {describe(input)} with {describe(target)}",
                expected=self.targets.format(list(shape), list(input.shape)),
            )


class NLLLoss(_Classes):
    """The mean of -input[target], for log-probabilities such as LogSoftmax returns."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check_classes(input, target)
        return F.nll_loss_nd(input, target, self.weight, self._reduction, self.ignore_index)


@layer
class CrossEntropyLoss(_Classes, targets="class indices of {}, or probabilities of {}"):
    """NLLLoss of the log-softmax; the target may also be probabilities."""

    label_smoothing: float = 0.0

    def build(self, kind: dict[str, Any]) -> None:
        super().build(kind)
        if not 0 <= self.label_smoothing <= 1:
            raise BadInput(
                f"CrossEntropyLoss cannot have label_smoothing={self.label_smoothing}",
                expected="0 to 1",
            )

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check_tensors(input, target)
        if tuple(input.shape) != tuple(target.shape):
            self._check_classes(input, target)
        elif not target.is_floating_point():
            raise BadInput(
                f"CrossEntropyLoss cannot compare {describe(input)} with {describe(target)}",
                expected="probabilities with fractions, or integers for class indices",
            )
        return F.cross_entropy_loss(
            *(input, target, self.weight, self._reduction, self.ignore_index, self.label_smoothing)
        )


class BCELoss(_Weighted):
    """Cross entropy of probabilities between 0 and 1."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.binary_cross_entropy(input, target, self.weight, self._reduction)


@layer
class BCEWithLogitsLoss(_Weighted):
    """BCELoss of the sigmoid, computed without overflow."""

    pos_weight: Any = None

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, self.pos_weight, self._reduction
        )


@layer
class KLDivLoss(_Unweighted, reductions=(*_REDUCTIONS, "batchmean")):
    """target * (log(target) - input); the input (with `log_target` both) is a logarithm."""

    log_target: bool = False

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        if self.log_target:
            each = F.mul(F.exp(target), F.sub(target, input))
        else:
            each = F.sub(F.xlogy(target, target), F.mul(target, input))
        if self.reduction == "batchmean":
            return F.div(F.sum(each), max(input.shape[0] if input.ndim else 1, 1))
        return self._reduce(each)


@layer
class CosineSimilarity(Layer):
    """The cosine of the angle between vectors along `dim`."""

    dim: int = 1
    eps: float = 1e-8

    def forward(self, x1: CustomTensor, x2: CustomTensor) -> CustomTensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)
