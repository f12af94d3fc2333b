"""Learning-rate schedulers with torch's values.

As in torch, rates follow from the rate before, so several schedulers can act on one optimizer.
"""

from __future__ import annotations

from holdfast.compute.optim.lr_base import LRScheduler
from holdfast.compute.optim.lr_cycles import OneCycleLR, ReduceLROnPlateau, SequentialLR
from holdfast.compute.optim.lr_factors import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    StepLR,
)

__all__ = ["ConstantLR", "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LambdaLR"]
__all__ += ["LinearLR", "MultiStepLR", "OneCycleLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]
