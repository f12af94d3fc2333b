"""Normal random elements on the device, equal to the CPU's to the last bit.

torch draws 16 and more normal elements at once with logarithms and cosines of its own, which differ
between processors; only its own kernel draws the same ones. Where falling back is forbidden the
engine draws them, and the last bit may differ.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute import engine, random
from holdfast.compute.torch_device.api import seeds
from holdfast.compute.torch_device.dispatch import handlers
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.overrides.tensor_overloads import special
from holdfast.compute.torch_device.storage import tensor_bridge

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NORMAL: Any = torch.ops.aten.normal_.default


class _Theirs(threading.local):
    """A torch generator that takes over our state."""

    def __init__(self) -> None:
        self.generator = torch.Generator()


_theirs = _Theirs()


@functools.cache
def _by_engine() -> Callable[..., Any]:
    return handlers.handler(_NORMAL)


@special("normal_")
def normal_(
    self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> torch.Tensor:
    few = self.numel() < random.BLOCK or self.dtype not in _DTYPES
    if generator is not None or few or engine.is_strict():
        return _by_engine()(self, mean, std, generator=generator)
    ours, theirs = random.current(), _theirs.generator
    here = tensor_bridge.is_on_host(self)
    with ours.whole():
        theirs.set_state(seeds.pack(ours.get_state()))
        # torch draws in the tensor's memory, if the host can read it.
        if here:
            drawn = tensor_bridge.as_cpu_tensor(tensor_bridge.as_array(self))
        else:
            drawn = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype)
        _NORMAL(drawn, mean, std, generator=theirs)
        ours.set_state(seeds.unpack(theirs.get_state()))
    return self if here else self.copy_(drawn)


@special("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal(mean: Any, std: Any = 1.0, *, generator: Any = None) -> torch.Tensor:
    given = [one for one in (mean, std) if isinstance(one, torch.Tensor)]
    kind = functools.reduce(torch.promote_types, (one.dtype for one in given))
    if isinstance(std, torch.Tensor) and std.numel() and std.dtype.is_complex:
        raise Refused("a standard deviation is not complex", expected="real numbers")
    low = std.min().item() if isinstance(std, torch.Tensor) and std.numel() else std
    if not isinstance(low, torch.Tensor) and low < 0:
        raise Refused(f"a standard deviation is {low}", expected="0 or more")
    shape = torch.broadcast_shapes(*(one.shape for one in given))
    drawn = torch.empty(shape, dtype=kind, device=given[0].device)
    return drawn.normal_(generator=generator).mul_(std).add_(mean)
