"""Where the weights of a measured module lie before a system gets it.

One block of RAM serves every system in turn: its pages are touched once, and every system starts
from the same bytes, drawn anew from the seed, so that nothing one system did reaches the next.
"""

from __future__ import annotations

import torch
from torch import nn

from residency.shapes import DTYPE, SEED, Shape, drawn

PAGE_BYTES = 4096


def weight_bytes(module: nn.Module) -> int:
    """What the parameters of `module` take."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


class HostRoom:
    """RAM for the weights of one module at a time.

    Every parameter starts at a page of its own, so that systems that pin memory in place can.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def fill(self, shape: Shape, device: torch.device) -> nn.Module:
        """A module of `shape` with its weights in RAM, drawn on `device`."""
        module = shape.module()
        places = [-(-p.numel() * DTYPE.itemsize // PAGE_BYTES) for p in module.parameters()]
        self._grow((sum(places) + 1) * PAGE_BYTES)
        start = -self._bytes.data_ptr() % PAGE_BYTES
        generator = torch.Generator(device).manual_seed(SEED)
        for (name, parameter), pages in zip(list(module.named_parameters()), places, strict=True):
            size = parameter.numel() * DTYPE.itemsize
            view = self._bytes[start : start + size].view(DTYPE).view(parameter.shape)
            view.copy_(drawn(name, parameter.shape, generator))
            _put(module, name, view)
            start += pages * PAGE_BYTES
        return module

    def _grow(self, size_bytes: int) -> None:
        if self._bytes.numel() < size_bytes:
            self._bytes = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new
            self._bytes = torch.empty(size_bytes, dtype=torch.uint8)


def on_device(shape: Shape, device: torch.device) -> nn.Module:
    """A module of `shape` with the same weights as `HostRoom.fill` gives, on `device`."""
    module = shape.module()
    generator = torch.Generator(device).manual_seed(SEED)
    for name, parameter in list(module.named_parameters()):
        _put(module, name, drawn(name, parameter.shape, generator))
    return module.to(device)


def _put(module: nn.Module, name: str, values: torch.Tensor) -> None:
    """Replace the parameter `name`; torch cannot give storage to one that has none."""
    owner, _, attribute = name.rpartition(".")
    parameter = nn.Parameter(values, requires_grad=False)
    setattr(module.get_submodule(owner), attribute, parameter)
