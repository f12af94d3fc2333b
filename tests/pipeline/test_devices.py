"""Devices and their choice; the accelerators with a torch that claims to have them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.base.errors import BadInput, NotFound, OutOfMemory, Unsupported
from holdfast.pipeline.devices import torch_devices
from holdfast.pipeline.devices.device import DeviceBudget, choose, decide_budget, open_device
from holdfast.pipeline.devices.torch_devices import Cpu, Cuda, Mps, Xpu
from holdfast.topology import Gpu, Topology

GB = 10**9
MACHINE = Topology(memory_bytes=64 * GB)
WITH_NVIDIA = Topology(memory_bytes=64 * GB, gpus=(Gpu(id=0, vendor="NVIDIA", name="RTX 2060"),))


def fake_torch(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """A torch whose accelerators are those of `modules`, and no others."""
    absent = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    no_metal = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: "mps" in modules))
    names = {"cuda": absent, "xpu": absent, "mps": absent, "backends": no_metal} | modules
    fake = SimpleNamespace(
        __version__="9.9",
        device=torch.device,
        float32=torch.float32,
        bfloat16=torch.bfloat16,
        float16=torch.float16,
        **names,
    )
    monkeypatch.setattr(torch_devices, "torch", fake)


def card(*free: int, total: int = 24 * GB, **more: Any) -> SimpleNamespace:
    """Cards of one kind, with that much free on each."""

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        return free[device.index or 0], total

    return SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: len(free),
        device=contextlib.nullcontext,
        **({"mem_get_info": mem_get_info, "is_bf16_supported": lambda **_: True} | more),
        memory_reserved=lambda device: 3 * GB,
        memory_allocated=lambda device: 2 * GB,
        max_memory_allocated=lambda device: 5 * GB,
        reset_peak_memory_stats=lambda device: None,
        synchronize=lambda device: None,
    )


def locked(device: torch.device) -> tuple[int, int]:
    raise RuntimeError("CUDA error: busy\nand much advice")


def test_the_cpu_counts_the_memory_of_the_process() -> None:
    cpu = Cpu()
    cpu.reset_peak()
    before = cpu.used_bytes()
    block = bytearray(200_000_000)
    assert before is not None
    peak = cpu.peak_bytes()
    assert peak is not None
    assert peak - before > 150_000_000
    del block
    cpu.reset_peak()
    after = cpu.peak_bytes()
    assert after is not None
    assert after < peak


def test_the_cpu_refuses_a_budget() -> None:
    with pytest.raises(Unsupported) as caught:
        Cpu().limit(6 * GB)
    assert str(caught.value) == (
        "cannot keep a run on the CPU under 6.0 GB: nothing limits what torch takes from the host\n"
        "  expected: a budget for a GPU\n"
        "  try: leave the budget out, or limit the whole process with systemd-run or ulimit -v"
    )


def test_an_unknown_device_gets_a_suggestion() -> None:
    with pytest.raises(NotFound) as caught:
        open_device("cude")
    assert str(caught.value) == (
        "unknown device 'cude'\n"
        "  expected: auto, or one of cpu, cuda, xpu, mps, holdfast, opencl, xla, simulated\n"
        "  try: cuda"
    )


def test_a_device_that_is_not_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    for name, why in [
        ("cuda", "finds no CUDA or ROCm device"),
        ("xpu:0", "finds no Intel XPU"),
        ("mps", "finds no Apple GPU"),
    ]:
        with pytest.raises(Unsupported) as caught:
            open_device(name)
        assert str(caught.value) == (
            f"cannot use device {name!r}: torch 9.9 {why}\n"
            "  expected: a device that torch can use here\n"
            "  try: --device auto, or `holdfast doctor` for what is missing"
        )


def test_a_number_beyond_the_last_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(20 * GB))
    assert open_device("cuda:0").name == "cuda:0"
    with pytest.raises(Unsupported, match="torch sees 1 of its kind, numbered from 0"):
        open_device("cuda:1")
    with pytest.raises(BadInput, match="cannot read device 'cuda:x'"):
        open_device("cuda:x")


def test_free_memory_counts_what_torch_keeps_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(20 * GB))
    assert Cuda().free_bytes() == 21 * GB
    assert (Cuda().used_bytes(), Cuda().peak_bytes()) == (2 * GB, 5 * GB)


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_card_without_bf16_gets_fp16(
    native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = card(GB, is_bf16_supported=lambda including_emulation: native)
    fake_torch(monkeypatch, cuda=cuda)
    assert Cuda().precision("auto") is dtype
    assert Cuda().precision("fp32") is torch.float32


def test_a_budget_becomes_a_fraction_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def set_fraction(fraction: float, device: int) -> None:
        asked.append((fraction, device))

    xpu = card(GB, GB, current_device=lambda: 3, set_per_process_memory_fraction=set_fraction)
    fake_torch(monkeypatch, xpu=xpu)
    Xpu().limit(None)  # nothing of ours to take away
    Xpu().limit(6 * GB)
    Xpu(1).limit(100 * GB)
    Xpu().limit(None)
    Xpu(1).limit(None)
    assert asked == [(0.25, 3), (1.0, 1), (1.0, 3), (1.0, 1)]


def test_mps_keeps_the_peak_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [GB]
    mps = SimpleNamespace(
        recommended_max_memory=lambda: 16 * GB,
        driver_allocated_memory=lambda: 4 * GB,
        current_allocated_memory=lambda: used[0],
        synchronize=lambda: None,
    )
    fake_torch(monkeypatch, mps=mps)
    device = Mps()
    assert device.unusable() is None
    assert device.free_bytes() == 12 * GB
    device.reset_peak()
    used[0] = 3 * GB
    device.synchronize()
    used[0] = 2 * GB
    device.synchronize()
    assert device.peak_bytes() == 3 * GB


@pytest.mark.parametrize(
    ("modules", "topology", "why"),
    [
        (dict, MACHINE, "cpu: no GPU that torch can use was found"),
        (dict, WITH_NVIDIA, "cpu: torch 9.9 finds no CUDA or ROCm device"),
        (
            lambda: {"cuda": card(20 * GB)},
            WITH_NVIDIA,
            "cuda:0, 21.0 GB free for 10.0 GB of weights",
        ),
        (
            lambda: {"cuda": card(5 * GB)},
            WITH_NVIDIA,
            "cuda:0: 6.0 GB free for 10.0 GB of weights, streamed",
        ),
        (
            lambda: {"cuda": card(9_500_000_000)},
            WITH_NVIDIA,
            "cuda:0: 10.5 GB free for 10.0 GB of weights, streamed",
        ),
        (
            lambda: {"cuda": card(4 * GB, 5 * GB), "xpu": card(3 * GB)},
            MACHINE,
            "cuda:1: 6.0 GB free for 10.0 GB of weights, streamed",
        ),
        (
            lambda: {"cuda": card(-GB // 2)},
            WITH_NVIDIA,
            "cpu: cuda:0 has 500 MB free for 10.0 GB of weights",
        ),
        (
            lambda: {"cuda": card(5 * GB), "xpu": card(12 * GB)},
            MACHINE,
            "xpu:0, 13.0 GB free for 10.0 GB of weights",
        ),
        (
            lambda: {"cuda": card(5 * GB, 12 * GB)},
            MACHINE,
            "cuda:1, 13.0 GB free for 10.0 GB of weights",
        ),
        (
            lambda: {"cuda": card(20 * GB, mem_get_info=locked)},
            MACHINE,
            "cpu: cuda:0 does not answer (CUDA error: busy)",
        ),
    ],
)
def test_auto_says_why(
    modules: Callable[[], dict[str, Any]],
    topology: Topology,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_torch(monkeypatch, **modules())
    assert choose(5 * GB, "auto", topology).why == why


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (6 * GB, "cuda:1, 7.0 GB free for 10.0 GB of weights"),
        (2 * GB, "cuda:0, 3.0 GB free for 10.0 GB of weights"),
        (9 * GB, "cuda:1: 7.0 GB free for 10.0 GB of weights, streamed"),
    ],
)
def test_auto_looks_for_room_for_a_budget(
    budget: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(monkeypatch, cuda=card(2 * GB, 6 * GB))
    assert choose(5 * GB, "auto", MACHINE, budget).why == why


@pytest.mark.parametrize(
    ("free", "need", "budget", "expected"),
    [
        (20, 10, None, None),
        (5, 10, None, DeviceBudget(6 * GB, "cuda: 6.0 GB free for 10.0 GB of weights, streamed")),
        (20, 10, 6, DeviceBudget(6 * GB, "cuda: 6.0 GB budget for 10.0 GB of weights, streamed")),
        (20, 10, 15, DeviceBudget(15 * GB, "cuda: 15.0 GB budget for 10.0 GB of weights")),
        (5, 10, 15, DeviceBudget(6 * GB, "cuda: 6.0 GB free for 10.0 GB of weights, streamed")),
        (15, 10, 20, DeviceBudget(16 * GB, "cuda: 16.0 GB free for 10.0 GB of weights")),
    ],
)
def test_weights_get_the_budget_or_what_is_free(
    free: int,
    need: int,
    budget: int | None,
    expected: DeviceBudget | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_torch(monkeypatch, cuda=card(free * GB))
    wanted = None if budget is None else budget * GB
    assert decide_budget(Cuda(), need * GB, wanted) == expected


def test_a_card_that_does_not_answer_gets_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(20 * GB, mem_get_info=locked))
    assert decide_budget(Cuda(), 10 * GB, None) is None
    found = decide_budget(Cuda(), 10 * GB, 6 * GB)
    assert found == DeviceBudget(6 * GB, "cuda: 6.0 GB budget for 10.0 GB of weights, streamed")


def test_nothing_is_streamed_to_the_cpu() -> None:
    assert decide_budget(Cpu(), 10 * GB, 6 * GB) is None
    with pytest.raises(Unsupported) as caught:
        Cpu().carrier()
    assert str(caught.value) == (
        "cannot stream weights to cpu\n  expected: a device with memory of its own"
    )


def test_streamed_weights_have_to_fit_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(5 * GB))
    with pytest.raises(OutOfMemory, match=r"cannot load 80\.0 GB of weights"):
        choose(40 * GB, "auto", MACHINE)


def test_the_peak_of_a_card_is_also_what_its_carrier_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(20 * GB))
    carrier = SimpleNamespace(peak_bytes=9 * GB)
    monkeypatch.setattr(torch_devices, "carrier_for", lambda name: carrier)
    device = Cuda()
    assert device.carrier() is carrier
    assert device.peak_bytes() == 9 * GB
    device.reset_peak()
    assert device.peak_bytes() == 5 * GB


def test_weights_that_fit_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    with pytest.raises(OutOfMemory) as caught:
        choose(25 * GB, "auto", MACHINE)  # four bytes each on the CPU
    assert str(caught.value) == (
        "cannot load 100 GB of weights: this machine has 64.0 GB of memory\n"
        "  expected: a machine that holds the weights\n"
        "  try: --precision bf16 halves fp32 weights"
    )
