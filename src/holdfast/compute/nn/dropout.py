"""Dropout, Dropout1d/2d/3d."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d"]


@layer
class Dropout(Layer, shown="p={0.p}, inplace={0.inplace}"):
    """Zero each element with probability `p` in training, and scale the others by 1 / (1 - p)."""

    p: float = 0.5
    inplace: bool = False

    def build(self, kind: dict[str, Any]) -> None:
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise BadInput(
                f"{self.p!r} is no probability for {type(self).__name__}", expected="0 <= p <= 1"
            )

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        return drop_elements(input, self.p if self.training else 0.0)


def drop_elements(input: CustomTensor, p: float) -> CustomTensor:
    """Apply dropout; returns the input itself if p is 0."""
    return input if p == 0 else F.native_dropout(input, p, True)[0]


class _FeatureDropout(Dropout):
    ranks: ClassVar[tuple[int, ...]]

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if input.ndim not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise self.refuse(input, f"it has {input.ndim} dimensions", f"{wanted} dimensions")
        if not self.training or self.p == 0:
            return input
        whole = input.shape[: input.ndim - self.ranks[0] + 1]
        shape = [*whole, *[1] * (input.ndim - len(whole))]
        ones = init.ones_(init.empty(*shape, device=input.device, dtype=input.dtype))
        return F.mul(input, drop_elements(ones, self.p))


class Dropout1d(_FeatureDropout, ranks=(2, 3)):
    """Drops whole channels of [batch, channels, length]."""


class Dropout2d(_FeatureDropout, ranks=(3, 4)):
    """Drops whole channels of [batch, channels, height, width]."""


class Dropout3d(_FeatureDropout, ranks=(4, 5)):
    """Drops whole channels of [batch, channels, depth, height, width]."""
