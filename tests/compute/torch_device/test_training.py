"""A training loop as people write it, with nothing changed but the name of the device.

The losses of the CPU come from the same loop. Both draw the same random numbers, so that dropout,
shuffling and what a checkpoint computes again are the same; sums are rounded in another order.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import holdfast.torch  # noqa: F401  (makes the device known)
from holdfast import memory
from holdfast.compute import engine
from holdfast.memory.debug.leaks import LeakFound
from tests.tolerance import bound

DEVICE = "holdfast"
STEPS = 24
ALL = bool(os.environ.get("HOLDFAST_TEST_ALL"))  # see `make test-all`
LONG = 10_000 if ALL else 1_000  # steps


@pytest.fixture(autouse=True)
def on_the_engine() -> Iterator[None]:
    """Nothing that a test here computes falls back to the host."""
    before = engine.fallbacks.copy()
    with engine.strict():
        yield
    fell_back = engine.fallbacks - before
    assert not fell_back


class Net(nn.Module):
    """Convolutions, both kinds of normalization, attention, dropout; two parts computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU())
        self.down = nn.Conv2d(16, 32, 2, stride=2)
        self.norm = nn.LayerNorm(32)
        self.mix = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(36 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.stem, x, use_reentrant=False)
        x = self.norm(self.down(x).flatten(2).transpose(1, 2))
        x = x + checkpoint(self._mixed, x, use_reentrant=False)
        return self.out(self.drop(x).flatten(1))

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x, x, x, need_weights=False)[0]


@dataclass
class Training:
    """All that a run consists of; `state` is what is saved of it."""

    device: str
    amp: torch.dtype | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net().to(self.device)
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.05)
        self.rate = torch.optim.lr_scheduler.OneCycleLR(self.adam, max_lr=3e-3, total_steps=STEPS)
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.amp is not None)

    def run(self, steps: int) -> list[float]:
        torch.manual_seed(len(self.losses))
        for x, y in _batches(steps):
            self.losses.append(self.step(x.to(self.device), y.to(self.device)))
        return self.losses

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        with torch.autocast(self.device, self.amp, enabled=self.amp is not None):
            loss = nn.functional.cross_entropy(self.model(x), y, label_smoothing=0.1)
        self.adam.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.adam)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.adam)
        self.scaler.update()
        self.rate.step()
        return loss.item()

    def state(self) -> dict[str, Any]:
        parts = (self.model, self.adam, self.rate, self.scaler)
        return {"parts": [part.state_dict() for part in parts], "losses": self.losses}

    def load(self, state: dict[str, Any]) -> None:
        parts = (self.model, self.adam, self.rate, self.scaler)
        for part, saved in zip(parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.losses = list(state["losses"])


def _batches(steps: int) -> DataLoader[Any]:
    """Blurred bars whose place is the class; two workers read them."""
    made = torch.Generator().manual_seed(1)
    y = torch.randint(0, 10, (16 * steps,), generator=made)
    x = torch.randn(len(y), 1, 12, 12, generator=made)
    x[torch.arange(len(y)), 0, y] += 2
    order = torch.Generator().manual_seed(2)
    return DataLoader(
        TensorDataset(x, y), batch_size=16, shuffle=True, num_workers=1, generator=order
    )


def furthest(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_losses_are_those_of_the_cpu() -> None:
    ours, theirs = Training(DEVICE).run(STEPS), Training("cpu").run(STEPS)
    assert theirs[-1] < 0.8 * theirs[0]  # it does learn
    assert furthest(ours, theirs) < bound("float32", 4096)


@pytest.mark.slow
@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_losses_in_mixed_precision_are_near_those_of_the_cpu(amp: torch.dtype) -> None:
    ours, theirs = Training(DEVICE, amp).run(STEPS), Training("cpu", amp).run(STEPS)
    assert ours != Training(DEVICE).run(STEPS)  # it was mixed
    assert furthest(ours, theirs) < bound(amp, 16)


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [DEVICE, "cpu"])
def test_a_run_that_was_saved_goes_on_where_it_was(goes_on: str, tmp_path: Path) -> None:
    half = Training(DEVICE)
    half.run(STEPS // 2)
    torch.save(half.state(), tmp_path / "half.pt")
    whole = half.run(STEPS // 2)
    resumed = Training(goes_on)
    resumed.load(torch.load(tmp_path / "half.pt", map_location=goes_on))
    assert resumed.losses == whole[: STEPS // 2]
    losses = resumed.run(STEPS // 2)
    assert furthest(losses, whole) < (1e-12 if goes_on == DEVICE else 1e-5)


# ---- memory


def _held() -> tuple[int, int]:
    """Bytes in the pool of the device, and bytes of this process."""
    gc.collect()
    torch_holdfast: Any = torch.get_device_module(DEVICE)
    return torch_holdfast.memory_allocated(), psutil.Process().memory_info().rss


class Small:
    """A network of 66 KB, an optimizer and data, all on the device."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)
        self.model = nn.Sequential(*layers).to(DEVICE)
        self.adam = torch.optim.AdamW(self.model.parameters())
        self.x = torch.randn(8, 64, 64, device=DEVICE)
        self.y = torch.tanh(self.x.roll(1, -1))

    def steps(self, count: int) -> float:
        loss = self.y.new_zeros(())
        for step in range(count):
            loss = nn.functional.mse_loss(self.model(self.x[step % 8]), self.y[step % 8])
            loss.backward()
            self.adam.step()
            self.adam.zero_grad()
        return loss.item()


@pytest.mark.slow
def test_memory_stays_flat_over_thousands_of_steps() -> None:
    small = Small()
    first = small.steps(200)  # what is made once: handlers, moments of the optimizer, the pool
    pool, resident = _held()
    assert small.steps(LONG) < first / 2
    pool_after, resident_after = _held()
    grown = resident_after - resident
    print(f"{LONG} steps: pool {pool} and {pool_after} bytes, resident {resident} and {grown:+}")
    assert pool_after == pool
    assert grown < 2_000_000


def test_no_block_outlives_the_steps() -> None:
    small = Small()
    small.steps(2)
    with memory.no_leaks():
        small.steps(LONG if ALL else 50)


def test_the_leak_finder_sees_what_a_step_leaves_behind() -> None:
    small, kept = Small(), []

    @memory.no_leaks()
    def careless() -> None:
        small.steps(2)
        kept.append(small.model(small.x[0]))

    small.steps(2)
    with pytest.raises(LeakFound) as caught:
        careless()
    made_by = [[frame.function for frame in leak.stack] for leak in caught.value.leaks]
    assert made_by
    assert all(any(f.endswith("careless") for f in functions) for functions in made_by)
