"""Several devices of an engine, waiting for them, and choosing the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import holdfast.torch
from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.api import engine_choice
from holdfast.compute.torch_device.storage import tensor_bridge as storage
from tests.compute.torch_device import stand_in
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

DEVICE = "holdfast"
there: Any = torch.get_device_module(DEVICE)
OPENCL = pytest.param("opencl", marks=[pytest.mark.opencl, needs(_no_opencl())])


def held(tensor: torch.Tensor) -> Any:
    """What a tensor's storage holds."""
    storage: Any = tensor.untyped_storage()
    return storage.held


# ---- several devices


@pytest.mark.usefixtures("stood_in")
def test_each_device_has_its_own_tensors() -> None:
    assert there.device_count() == torch.accelerator.device_count() == 2
    x = torch.ones(2, device="holdfast:1")
    assert held(x).engine is stand_in.engine_at(1)
    assert (x + 1).device == torch.device("holdfast:1")
    moved = x.to("holdfast:0")
    assert held(moved).engine is stand_in.engine_at(0)
    assert moved.tolist() == [1, 1]


@pytest.mark.usefixtures("stood_in")
def test_tensors_of_two_devices_do_not_meet() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, device="holdfast:1").add(torch.ones(2, device="holdfast:0"))
    assert str(caught.value) == (
        "Expected all tensors to be on the same device, but found at least two devices, "
        "holdfast:1 and holdfast:0\n"
        "  expected: every tensor on one device; numbers and indices may be on the CPU\n"
        "  try: tensor.to('holdfast:1')"
    )


@pytest.mark.usefixtures("stood_in")
def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, device="holdfast:2")
    assert str(caught.value) == (
        "there is no device 'holdfast:2' here\n  expected: 'holdfast', 'holdfast:0' to 'holdfast:1'"
    )


@pytest.mark.usefixtures("stood_in")
def test_new_tensors_are_made_on_the_current_device() -> None:
    with there.device(1):
        assert there.current_device() == 1
        assert torch.ones(2, device=DEVICE).device.index == 1
    assert torch.ones(2, device=DEVICE).device.index == 0
    torch.accelerator.set_device_index(1)
    assert torch.ones(2, device=DEVICE).device.index == 1
    holdfast.torch.use("numpy")
    assert there.current_device() == 0


@pytest.mark.usefixtures("stood_in")
def test_gradients_are_computed_on_the_second_device() -> None:
    x = torch.ones(3, device="holdfast:1", requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), x.grad.device.index) == ([2, 2, 2], 1)


@pytest.mark.usefixtures("stood_in")
def test_sparse_tensors_are_made_on_the_second_device() -> None:
    x = torch.eye(3, device="holdfast:1").to_sparse()
    assert x.device == x._values().device == torch.device("holdfast:1")


# ---- waiting


@pytest.mark.usefixtures("stood_in")
def test_events_are_moments_in_the_queue_of_the_engine() -> None:
    begin, end = (there.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) == 1
    other = there.Event(enable_timing=True)
    other.record(there.Stream(1))
    with pytest.raises(RuntimeError) as caught:
        begin.elapsed_time(other)
    assert str(caught.value) == (
        "cannot measure: the events are of two devices\n  expected: two events of one device"
    )


@pytest.mark.usefixtures("stood_in")
def test_synchronize_waits_for_the_engine() -> None:
    before = [stand_in.engine_at(index).waited for index in range(2)]
    there.synchronize(1)
    there.current_stream().synchronize()
    torch.accelerator.synchronize()
    assert [stand_in.engine_at(i).waited - before[i] for i in range(2)] == [2, 1]


# ---- choosing


@pytest.mark.parametrize("engine", [OPENCL], indirect=True)
def test_figures_are_those_of_the_device(engine: str) -> None:
    before = there.memory_allocated()
    x = torch.ones(1 << 18, device=DEVICE)
    assert there.memory_allocated() - before >= x.nbytes
    properties = there.get_device_properties()
    assert properties.engine == "opencl"
    assert properties.name.startswith("Holdfast, OpenCL engine: ")
    free, total = there.mem_get_info()
    assert 0 < free <= total <= properties.total_memory


def test_the_numpy_engine_has_no_arrays_elsewhere() -> None:
    holdfast.torch.use("numpy")
    x = torch.ones(3, device=DEVICE)
    assert storage.is_on_host(x)
    assert there.device_count() == 1


@pytest.mark.slow
def test_the_shim_is_for_numpy_alone() -> None:
    program = "import holdfast.torch; print(holdfast.torch.shim_loaded())"
    environ = {**os.environ, "HOLDFAST_ENGINE": "opencl", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
    environ["HOLDFAST_TORCH_SHIM"] = "on"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True
    )
    assert done.stderr.endswith(
        "Unsupported: the C++ shim cannot be used with the engine 'opencl': its kernels read the "
        "host's memory\n"
        "  expected: HOLDFAST_ENGINE=numpy, or HOLDFAST_TORCH_SHIM=off\n"
    )


def test_another_engine_is_refused_with_the_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice.choice, "is_shim_armed", True)
    with pytest.raises(Unsupported) as caught:
        holdfast.torch.use("opencl")
    assert str(caught.value) == (
        "the device cannot compute with the engine 'opencl': the C++ shim has begun to compute, "
        "and its kernels read the host's memory\n"
        "  expected: an engine that is chosen before the first tensor is made\n"
        "  try: HOLDFAST_ENGINE=opencl, or HOLDFAST_TORCH_SHIM=off"
    )
    assert holdfast.torch.engine() == "numpy"
