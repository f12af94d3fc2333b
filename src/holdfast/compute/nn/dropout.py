"""Dropout, Dropout1d/2d/3d."""

from __future__ import annotations

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor


class Dropout(Module):
    """Zero each element with probability `p` in training, and scale the others by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not isinstance(p, int | float) or not 0 <= p <= 1:
            raise BadInput(
                f"{p!r} is no probability for {type(self).__name__}", expected="0 <= p <= 1"
            )
        self.p, self.inplace = p, inplace

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        return drop_elements(input, self.p if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


def drop_elements(input: CustomTensor, p: float) -> CustomTensor:
    """Apply dropout; returns the input itself if p is 0."""
    return input if p == 0 else F.native_dropout(input, p, True)[0]


class _FeatureDropout(Dropout):
    ranks: tuple[int, ...]

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if input.ndim not in self.ranks:
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions",
                f"{' or '.join(map(str, self.ranks))} dimensions",
            )
        if not self.training or self.p == 0:
            return input
        whole = input.shape[: input.ndim - self.ranks[0] + 1]
        shape = [*whole, *[1] * (input.ndim - len(whole))]
        ones = init.ones_(init.empty(*shape, device=input.device, dtype=input.dtype))
        return F.mul(input, drop_elements(ones, self.p))


class Dropout1d(_FeatureDropout):
    """Drops whole channels of [batch, channels, length]."""

    ranks = (2, 3)


class Dropout2d(_FeatureDropout):
    """Drops whole channels of [batch, channels, height, width]."""

    ranks = (3, 4)


class Dropout3d(_FeatureDropout):
    """Drops whole channels of [batch, channels, depth, height, width]."""

    ranks = (4, 5)
