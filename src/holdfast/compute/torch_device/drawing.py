"""Normal numbers on the device that are the CPU's to the last bit.

Covers: `normal_`, which `randn` and its kin are made of.
Leaves to others: all other distributions, which the op table draws bit by bit (`handlers`).
Promise: the numbers are those that torch draws on this CPU for the same state, and the device's
generator goes on from there. Where falling back is forbidden the engine draws them, and the last
bit may differ.

torch makes 16 and more normal numbers at once with logarithms and cosines of its own, which differ
between processors; only its own kernel draws the same ones.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute import engine, random
from holdfast.compute.torch_device import handlers, seeds, storage
from holdfast.compute.torch_device.specials import special

_FORMATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NORMAL: Any = torch.ops.aten.normal_.default


class _Theirs(threading.local):
    """torch's generator that the state is lent to."""

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
    few = self.numel() < random.BLOCK or self.dtype not in _FORMATS
    if generator is not None or few or engine.is_strict():
        return _by_engine()(self, mean, std, generator=generator)
    ours, theirs = random.current(), _theirs.generator
    with ours.whole():
        theirs.set_state(seeds.packed(ours.get_state()))
        _NORMAL(storage.on_cpu(storage.down(self)), mean, std, generator=theirs)
        ours.set_state(seeds.unpacked(theirs.get_state()))
    return self
