"""Optimizers and learning-rate schedulers without torch: names and arguments are torch.optim's.

Modules:

    adam            Adam, AdamW, CustomAdam
    lr_base         LRScheduler and what schedulers share
    lr_cycles       OneCycleLR, ReduceLROnPlateau, SequentialLR
    lr_factors      StepLR, LinearLR, CosineAnnealingLR …: the first rate times a factor
    lr_scheduler    all schedulers, as torch.optim.lr_scheduler names them
    optimizer       Optimizer, the base class
    rmsprop         RMSprop, Adagrad
    sgd             SGD
    update          runs an update block by block on NumPy, op by op elsewhere
"""

from __future__ import annotations

from holdfast.compute.optim import lr_scheduler
from holdfast.compute.optim.adam import Adam, AdamW, CustomAdam
from holdfast.compute.optim.optimizer import Optimizer
from holdfast.compute.optim.rmsprop import Adagrad, RMSprop
from holdfast.compute.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "CustomAdam", "Optimizer", "RMSprop", "lr_scheduler"]
