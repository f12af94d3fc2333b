"""The module names of specification 003."""

from __future__ import annotations

from holdfast.compute.nn.conv import Conv2d
from holdfast.compute.nn.linear import Linear
from holdfast.compute.nn.loss import MSELoss

__all__ = ["CustomConv2d", "CustomLinear", "CustomMSELoss"]


class CustomLinear(Linear):
    """`Linear`: CustomLinear(10, 5)(x)."""


class CustomConv2d(Conv2d):
    """`Conv2d`: CustomConv2d(3, 8, 3, padding=1)(images)."""


class CustomMSELoss(MSELoss):
    """`MSELoss`: CustomMSELoss()(predictions, targets).item()."""
