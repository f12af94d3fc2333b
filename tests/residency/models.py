"""Small modules for tests of streaming, and a device for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.residency.carriers.simulated import Simulated
from holdfast.topology.amx import disable_broken_amx

disable_broken_amx()


class Block(nn.Module):
    """A layer with weights of its own beside those of its parts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gate = nn.Parameter(torch.ones(width) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.gate


class Stack(nn.Module):
    """Blocks one after the other, and an attention that uses weights of a part it never calls."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.attention(x, x, x)[0]


def stack(seed: int = 0, dtype: torch.dtype = torch.float32, **sizes: int) -> Stack:
    torch.manual_seed(seed)
    return Stack(**sizes).to(dtype).eval().requires_grad_(False)


def some_input(seed: int = 1, dtype: torch.dtype = torch.float32, width: int = 64) -> torch.Tensor:
    return torch.randn(2, 8, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weight_bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def device(**settings: Any) -> Simulated:
    return Simulated(**{"link_gb_s": 0.5, "compute_gflops": 100.0, **settings})
