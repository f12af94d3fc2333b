"""Compute without torch: one table of ops, several engines, tensors with gradients.

    from holdfast.compute import CustomTensor, nn, optim

    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    step = optim.Adam(model.parameters(), lr=1e-2)

Names load on first use; NumPy and ml_dtypes come with the extra `compute`. From the lowest layer
to the highest:

    dtype           dtypes by torch's names, and type promotion
    random          the random generator; its numbers are torch's
    tensor_calls    lets modules below `tensors` call ops on tensors
    functional      every op of the table as a function
    ops/            the op table: signatures, shape rules, one-line gradients, decompositions
    engine          the engine protocol and registry; runs an op on an engine's arrays
    engines/        NumPy, OpenCL and torch kernels
    autograd/       recorded calls, backward, gradient formulas longer than a line
    tensors/        CustomTensor, devices, operators, indexing, creation
    fusion/         chains of pointwise ops in one pass: `fuse`
    nn/             modules, as torch.nn names them
    optim/          optimizers and learning-rate schedulers
    quant/          int8 and int4 quantization
    torch_device/   a torch device on top of the engines: its dispatch.resolve finds the op of a
                    call, `engine` the kernel in `engines`
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.compute import autograd, engine, functional, nn, ops, optim, quant, random
    from holdfast.compute.autograd.tape import enable_grad, is_grad_enabled, no_grad
    from holdfast.compute.engine import ENGINES
    from holdfast.compute.engines.numpy.threads import get_num_threads, set_num_threads
    from holdfast.compute.fusion.record import fuse
    from holdfast.compute.nn import CustomConv2d, CustomLinear, CustomMSELoss
    from holdfast.compute.optim import CustomAdam
    from holdfast.compute.random import manual_seed
    from holdfast.compute.tensors.creation import (
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
    from holdfast.compute.tensors.custom_tensor import AutogradTensor, CustomTensor
    from holdfast.compute.tensors.device import CustomDevice

_HOME = {
    "autograd.tape": ("enable_grad", "is_grad_enabled", "no_grad"),
    "tensors.creation": (
        *("arange", "empty", "from_dlpack", "from_numpy", "full", "matmul", "ones", "rand"),
        *("randint", "randn", "tensor", "zeros"),
    ),
    "tensors.device": ("CustomDevice",),
    "engine": ("ENGINES",),
    "fusion.record": ("fuse",),
    "nn": ("CustomConv2d", "CustomLinear", "CustomMSELoss"),
    "optim": ("CustomAdam",),
    "random": ("manual_seed",),
    "tensors.custom_tensor": ("AutogradTensor", "CustomTensor"),
    "engines.numpy.threads": ("get_num_threads", "set_num_threads"),
}
_MODULES = ("autograd", "engine", "functional", "nn", "ops", "optim", "quant", "random")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["ENGINES", "AutogradTensor", "CustomAdam", "CustomConv2d", "CustomDevice"]
__all__ += ["CustomLinear", "CustomMSELoss", "CustomTensor", "arange", "autograd", "empty"]
__all__ += ["enable_grad", "engine", "from_dlpack", "from_numpy", "full", "functional", "fuse"]
__all__ += ["get_num_threads", "is_grad_enabled", "manual_seed", "matmul", "nn", "no_grad", "ones"]
__all__ += ["ops", "optim", "quant", "rand", "randint", "randn", "random", "set_num_threads"]
__all__ += ["tensor", "zeros"]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        home = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        return globals().setdefault(name, getattr(home, name))
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
