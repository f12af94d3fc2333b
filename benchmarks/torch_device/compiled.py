"""Rows of `bench_torch_device.py` about `torch.compile(backend="holdfast")`.

Each row has microseconds for: torch on the CPU, the device uncompiled, the device compiled, tensors
on the CPU compiled; the smallest of several repeats.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import holdfast.torch  # noqa: F401

_REPEATS, _SPAN_S = 7, 0.05
_SIZES = (16, 4096, 1 << 20, 1 << 24)
_OPS = 20


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """20 pointwise ops that take a cycle each."""
    for _ in range(_OPS // 4):
        x = torch.relu(x * y + 0.5) - y
    return x


def curved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """20 pointwise ops, five of them sigmoids."""
    for _ in range(_OPS // 4):
        x = torch.sigmoid(x * y + 0.5) - y
    return x


_CHAINS = {"pointwise ops": plain, "pointwise ops with sigmoids": curved}


class Block(nn.Module):
    """A small transformer block: 32 wide, 4 heads."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.into(self.one(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.two(x))))


def rows() -> list[dict[str, Any]]:
    """One row for each workload."""
    found = [_chain_row(name, size) for name in _CHAINS for size in _SIZES]
    perceptron = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    for name, module, shape in (("mlp", perceptron, (8, 16)), ("block", Block(), (2, 16, 32))):
        for backward in (False, True):
            found.append(_module_row(name, module, torch.randn(shape), backward))
    return found


def _chain_row(name: str, size: int) -> dict[str, Any]:
    chain = _CHAINS[name]
    torch.manual_seed(0)
    given = torch.rand(size), torch.rand(size)

    def made(device: str, compiling: bool) -> Callable[[], Any]:
        args = [g.to(device) for g in given]
        call = _compiled(chain) if compiling else chain
        return lambda: call(*args)

    with torch.no_grad():
        return _row(f"{_OPS} {name}, {size} numbers", made)


def _module_row(name: str, module: nn.Module, x: torch.Tensor, backward: bool) -> dict[str, Any]:
    def made(device: str, compiling: bool) -> Callable[[], Any]:
        model, given = copy.deepcopy(module).to(device), x.to(device)
        call = _compiled(model) if compiling else model
        if backward:
            return lambda: call(given).square().mean().backward()
        return lambda: call(given)

    with torch.set_grad_enabled(backward):
        return _row(f"{name}, forward{' and backward' if backward else ''}", made)


def _compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="holdfast")


def _row(name: str, made: Callable[[str, bool], Callable[[], Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "torch_us": _shortest_us(made("cpu", False)),
        "device_us": _shortest_us(made("holdfast", False)),
        "compiled_us": _shortest_us(made("holdfast", True)),
        "compiled_cpu_us": _shortest_us(made("cpu", True)),
    }


def _shortest_us(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    count = max(1, int(_SPAN_S / (time.perf_counter() - start)))
    found = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - start) / count)
    return round(min(found) * 1e6, 1)


if __name__ == "__main__":
    for row in rows():
        print(row)
