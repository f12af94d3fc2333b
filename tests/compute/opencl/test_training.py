"""Learning on an OpenCL device, beside torch on the CPU; and memory that stays flat."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import holdfast.torch
from holdfast import memory
from holdfast.compute import CustomTensor, engine, nn, optim
from holdfast.compute.torch_device.shim import build
from holdfast.memory import memory_manager
from tests.compute.test_training import Cnn, Transformer, _digits, _noise
from tests.compute.torch_device.test_training import Training, furthest
from tests.tolerance import bound

STEPS = 10


@pytest.fixture(autouse=True)
def on_the_engine() -> Iterator[None]:
    """Nothing that a test here computes falls back to the host."""
    before = engine.fallbacks.copy()
    with engine.strict():
        yield
    assert engine.fallbacks - before == {}


@pytest.fixture
def device() -> Iterator[str]:
    """`torch.device("holdfast")` with the OpenCL engine."""
    if build.is_loaded():
        pytest.skip("the C++ shim is loaded: torch's own kernels compute")
    holdfast.torch.use("opencl")
    yield "holdfast"
    holdfast.torch.use("numpy")


class Theirs:
    """torch's layers and optimizer, on one of torch's devices."""

    def __init__(self, kind: Any, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = torch.nn.Sequential(*kind.layers(torch.nn)).to(device)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self, batch: Any, wanted: Any) -> float:
        rows, labels = (torch.tensor(one).to(self.device) for one in (batch, wanted))
        loss = torch.nn.functional.cross_entropy(self.model(rows), labels)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return loss.item()

    def right(self, images: Any, labels: Any) -> float:
        self.model.eval()
        with torch.no_grad():
            found = self.model(torch.tensor(images).to(self.device)).argmax(1).cpu().numpy()
        return float((found == labels).mean())


class Ours:
    """Layers and optimizer of our own on `opencl:0`, beginning where torch's do."""

    def __init__(self, kind: Any, start: Theirs) -> None:
        self.model = nn.Sequential(*kind.layers(nn))
        self.model.load_state_dict(start.model.state_dict())
        self.model.to("opencl")
        self.adam = optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self, batch: Any, wanted: Any) -> float:
        rows = CustomTensor(batch, device="opencl")
        labels = CustomTensor(wanted, dtype="int64", device="opencl")
        loss = nn.CrossEntropyLoss()(self.model(rows), labels)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return loss.item()


def losses(learner: Any, kind: Any, steps: int, data: Any) -> list[float]:
    rng = numpy.random.default_rng(1)
    images, labels = data[:2]
    found = []
    for _ in range(steps):
        chosen = rng.integers(0, len(images), 64)
        found.append(learner.step(images[chosen].reshape(kind.shape), labels[chosen]))
    return found


@pytest.mark.parametrize("kind", [Cnn, Transformer])
def test_the_first_ten_losses_of_torchs_layers_are_those_of_the_cpu(kind: Any, device: str) -> None:
    theirs = losses(Theirs(kind, "cpu"), kind, STEPS, _noise())
    ours = losses(Theirs(kind, device), kind, STEPS, _noise())
    assert ours == pytest.approx(theirs, abs=bound("float32", 1024))


@pytest.mark.parametrize("kind", [Cnn, Transformer])
def test_the_first_ten_losses_of_our_own_layers_are_torchs(kind: Any) -> None:
    ours = losses(Ours(kind, Theirs(kind, "cpu")), kind, STEPS, _noise())
    theirs = losses(Theirs(kind, "cpu"), kind, STEPS, _noise())
    assert ours == pytest.approx(theirs, abs=bound("float32", 1024))


@pytest.mark.slow
def test_after_two_hundred_steps_both_read_digits_equally_well(device: str) -> None:
    images, labels = _digits()[2:]
    right = []
    last = []
    for where in ("cpu", device):
        learner = Theirs(Cnn, where)
        last.append(losses(learner, Cnn, 200, _digits())[-1])
        right.append(learner.right(images.reshape(Cnn.shape), labels))
    assert last[1] == pytest.approx(last[0], abs=0.05)
    assert right[0] > 0.85
    assert right[1] == pytest.approx(right[0], abs=0.02)


@pytest.mark.slow
def test_a_whole_training_loop_follows_the_cpu(device: str) -> None:
    """Both normalizations, attention, dropout, checkpoints, AdamW, a schedule, worker processes."""
    ours, theirs = Training(device).run(12), Training("cpu").run(12)
    assert furthest(ours, theirs) < bound("float32", 4096)


# ---- memory


def test_no_block_of_the_device_outlives_the_steps(device: str) -> None:
    learner = Theirs(Cnn, device)
    losses(learner, Cnn, 2, _noise())
    learner.adam.zero_grad()
    gc.collect()
    pool = memory_manager.pool("opencl:0")
    before = pool.total_allocated
    with memory.no_leaks():
        losses(learner, Cnn, 3, _noise())
        learner.adam.zero_grad()
        gc.collect()
    assert pool.total_allocated == before


def test_a_recording_has_the_blocks_of_the_device(device: str) -> None:
    with memory.memory_profiler.record() as recorded:
        kept = torch.ones(1000, device=device) * 2
    places = {place.device for place in recorded.recording.places_table}
    assert "opencl:0" in places
    assert kept.sum().item() == 2000
