"""Optimizers and learning-rate schedulers, without torch: names and arguments are torch.optim's."""

from __future__ import annotations

from holdfast.compute.optim import lr_scheduler
from holdfast.compute.optim.adam import Adam, AdamW, CustomAdam
from holdfast.compute.optim.optimizer import Optimizer
from holdfast.compute.optim.rmsprop import Adagrad, RMSprop
from holdfast.compute.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CustomAdam",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
]
