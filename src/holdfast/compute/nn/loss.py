"""Losses, with torch's arguments and values; `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.nn.module import Module
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


class _Loss(Module):
    def __init__(
        self, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            raise BadInput(
                f"{type(self).__name__} was given size_average={size_average}, reduce={reduce}",
                expected='reduction="mean", "sum" or "none"',
            )
        words = ("none", "mean", "sum") + (("batchmean",) if type(self) is KLDivLoss else ())
        if reduction not in words:
            raise BadInput(
                f"{type(self).__name__} has no reduction {reduction!r}",
                expected=f"one of {', '.join(words)}",
            )
        self.reduction = reduction

    @property
    def _reduction(self) -> int:
        return _REDUCTIONS[self.reduction]

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


class MSELoss(_Loss):
    """The mean of the squared differences."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.mse_loss(input, target, self._reduction)


class L1Loss(_Loss):
    """The mean of the absolute differences."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return reduced(F.abs(F.sub(input, target)), self.reduction)


class SmoothL1Loss(_Loss):
    """Squared below `beta`, absolute above."""

    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        if self.beta == 0:
            return reduced(F.abs(F.sub(input, target)), self.reduction)
        return F.smooth_l1_loss(input, target, self._reduction, self.beta)


class HuberLoss(_Loss):
    """Squared below `delta`, absolute above: `delta` times SmoothL1Loss."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.huber_loss(input, target, self._reduction, self.delta)


class _Weighted(_Loss):
    """A loss with a weight, which is a buffer."""

    def __init__(
        self,
        weight: CustomTensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class _Classes(_Weighted):
    """[batch, classes, ...] against class indices [batch, ...]."""

    def __init__(
        self,
        weight: CustomTensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

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
                expected=f"class indices of {list(shape)}, or probabilities of {list(input.shape)}"
                if isinstance(self, CrossEntropyLoss)
                else f"class indices of {list(shape)}",
            )


class NLLLoss(_Classes):
    """The mean of -input[target], for log-probabilities such as LogSoftmax returns."""

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check_classes(input, target)
        return F.nll_loss_nd(input, target, self.weight, self._reduction, self.ignore_index)


class CrossEntropyLoss(_Classes):
    """NLLLoss of the log-softmax; the target may also be probabilities."""

    def __init__(
        self,
        weight: CustomTensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction)
        if not 0 <= label_smoothing <= 1:
            raise BadInput(
                f"CrossEntropyLoss cannot have label_smoothing={label_smoothing}",
                expected="0 to 1",
            )
        self.label_smoothing = label_smoothing

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


class BCEWithLogitsLoss(_Weighted):
    """BCELoss of the sigmoid, computed without overflow."""

    def __init__(
        self,
        weight: CustomTensor | None = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        pos_weight: CustomTensor | None = None,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, self.pos_weight, self._reduction
        )


class KLDivLoss(_Loss):
    """target * (log(target) - input); the input (with `log_target` both) is a logarithm."""

    def __init__(
        self,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: CustomTensor, target: CustomTensor) -> CustomTensor:
        self._check(input, target)
        if self.log_target:
            each = F.mul(F.exp(target), F.sub(target, input))
        else:
            each = F.sub(F.xlogy(target, target), F.mul(target, input))
        if self.reduction == "batchmean":
            return F.div(F.sum(each), max(input.shape[0] if input.ndim else 1, 1))
        return reduced(each, self.reduction)


def reduced(each: CustomTensor, reduction: str) -> CustomTensor:
    """Apply the reduction."""
    return each if reduction == "none" else F.mean(each) if reduction == "mean" else F.sum(each)


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: CustomTensor, x2: CustomTensor) -> CustomTensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)
