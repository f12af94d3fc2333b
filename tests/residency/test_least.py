"""The budget that an error tells is one that works."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.managed.managed import Managed
from holdfast.residency.managed.min_budget import find_min_budget


class Net(nn.Module):
    """Layers in a row, called with a name or without."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is not None and bool(mask.all()):  # libraries look into masks
            mask = None
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Picky(Net):
    """Goes a way that its numbers decide."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Loose(Net):
    """Takes anything."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().forward(*args, **kwargs)


def smallest(managed: Managed, args: Any, kwargs: Any) -> int | None:
    parts = (managed.module, managed.entries, managed.weights)
    return find_min_budget(*parts, 0, "forward", args, kwargs)


def least(module: nn.Module, *args: Any, **kwargs: Any) -> int | None:
    managed = manage(module, 10**6, Simulated())
    try:
        return smallest(managed, args, kwargs)
    finally:
        unmanage(module)


def test_the_least_budget_works_and_is_far_below_all_weights() -> None:
    module, x = Net(), torch.randn(8, 64)
    with torch.no_grad():
        expected = module(x)
        budget = least(module, x)
        assert budget is not None
        assert budget < 0.7 * sum(p.numel() * 4 for p in module.parameters())
        sim = Simulated()
        manage(module, budget, sim)
        for _ in range(3):
            assert torch.equal(module(x), expected)
        assert sim.peak_bytes <= budget
    unmanage(module)


def test_names_and_masks_change_nothing() -> None:
    x = torch.randn(8, 64)
    alone = least(Net(), x)
    assert alone is not None
    assert least(Net(), x=x) == alone
    assert least(Net(), x, torch.ones(8)) == alone


def test_what_cannot_be_followed_is_not_known() -> None:
    x = torch.randn(8, 64)
    assert least(Picky(), x) is None


def test_arguments_without_names_are_followed_too() -> None:
    x = torch.randn(8, 64)
    assert least(Loose(), x) == least(Net(), x)


def test_the_module_is_managed_as_before() -> None:
    module = Net()
    managed = manage(module, 10**6, Simulated())
    before = dict(module.__dict__)
    smallest(managed, (torch.randn(8, 64),), {})
    assert module.__dict__ == before
    unmanage(module)
