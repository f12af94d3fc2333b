"""Compute with no driver: one table of ops, several engines, tensors that learn.

    from holdfast.compute import CustomTensor, nn, optim

    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    step = optim.Adam(model.parameters(), lr=1e-2)

Names load on first use; NumPy and ml_dtypes come with the extra `compute`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.compute import (
        autograd,
        engine,
        functional,
        nn,
        ops,
        optim,
        quant,
        random,
    )
    from holdfast.compute.autograd import enable_grad, is_grad_enabled, no_grad
    from holdfast.compute.creation import (
        arange,
        empty,
        from_dlpack,
        from_numpy,
        full,
        matmul,
        ones,
        rand,
        randint,
        randn,
        tensor,
        zeros,
    )
    from holdfast.compute.device import CustomDevice
    from holdfast.compute.engine import ENGINES
    from holdfast.compute.fusion import fuse
    from holdfast.compute.nn import CustomConv2d, CustomLinear, CustomMSELoss
    from holdfast.compute.optim import CustomAdam
    from holdfast.compute.random import manual_seed
    from holdfast.compute.tensors import AutogradTensor, CustomTensor
    from holdfast.compute.threads import get_num_threads, set_num_threads

_HOME = {
    "autograd": ("enable_grad", "is_grad_enabled", "no_grad"),
    "creation": (
        *("arange", "empty", "from_dlpack", "from_numpy", "full", "matmul", "ones", "rand"),
        *("randint", "randn", "tensor", "zeros"),
    ),
    "device": ("CustomDevice",),
    "engine": ("ENGINES",),
    "fusion": ("fuse",),
    "nn": ("CustomConv2d", "CustomLinear", "CustomMSELoss"),
    "optim": ("CustomAdam",),
    "random": ("manual_seed",),
    "tensors": ("AutogradTensor", "CustomTensor"),
    "threads": ("get_num_threads", "set_num_threads"),
}
_MODULES = ("autograd", "engine", "functional", "nn", "ops", "optim", "quant", "random")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ENGINES",
    "AutogradTensor",
    "CustomAdam",
    "CustomConv2d",
    "CustomDevice",
    "CustomLinear",
    "CustomMSELoss",
    "CustomTensor",
    "arange",
    "autograd",
    "empty",
    "enable_grad",
    "engine",
    "from_dlpack",
    "from_numpy",
    "full",
    "functional",
    "fuse",
    "get_num_threads",
    "is_grad_enabled",
    "manual_seed",
    "matmul",
    "nn",
    "no_grad",
    "ones",
    "ops",
    "optim",
    "quant",
    "rand",
    "randint",
    "randn",
    "random",
    "set_num_threads",
    "tensor",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        home = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        return globals().setdefault(name, getattr(home, name))
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
