"""What the tests of the device share.

HOLDFAST_TORCH_SHIM=on pytest tests/compute/torch_device    # all of them with the C++ shim
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import holdfast.torch
from holdfast.base.registry import Entry
from holdfast.compute import engine as engines
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.shim import build
from tests.conftest import CACHE
from tests.needs import needs
from tests.topology.test_probes import _no_opencl


@pytest.fixture
def python_device() -> None:
    """For a test of what the handlers in Python do and torch's own kernels do not."""
    if build.is_loaded():
        pytest.skip("the C++ shim is loaded: torch's own kernels compute, choose and word errors")


@pytest.fixture
def stood_in(python_device: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in computes on the device, which has two of them."""
    entry = Entry("tests.compute.torch_device.stand_in:engine", "a GPU, from afar")
    monkeypatch.setitem(engines.ENGINES._entries, "stand-in", entry)
    monkeypatch.setattr(engine_choice, "ABLE", (*engine_choice.ABLE, "stand-in"))
    monkeypatch.setattr(engine_choice.choice, "elsewhere", True)
    holdfast.torch.use("stand-in")
    yield
    torch.get_device_module("holdfast").set_device(0)
    holdfast.torch.use("numpy")


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param("opencl", marks=[pytest.mark.opencl, needs(_no_opencl())]),
    ]
)
def engine(request: pytest.FixtureRequest, stood_in: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each engine that is not NumPy computes on the device; its kernels are kept for all tests."""
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(CACHE / "kernels"))
    holdfast.torch.use(request.param)
    holdfast.torch.clear_fallbacks()
    return request.param
