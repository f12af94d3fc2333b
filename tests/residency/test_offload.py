"""Streams for copies: order and waiting with made-up ones, values with CUDA where there is one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.residency.model_management.models import offload
from holdfast.residency.model_management.models.offload import (
    OffloadStreams,
    cast_to,
    cast_to_device,
)
from holdfast.residency.model_management.rules import current
from holdfast.residency.model_management.rules.machine import Machine
from holdfast.residency.model_management.rules.options import Options

HERE = torch.cuda.is_available()
CUDA, XPU = torch.device("cuda", 0), torch.device("xpu", 0)
GIB = 2**30


class Stream:
    """Writes down whom it waits for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def made_up(count: int) -> tuple[OffloadStreams, list[str]]:
    """Streams of made-up devices, and what they do."""
    log: list[str] = []
    numbers: dict[Any, int] = {}

    def make(device: torch.device) -> Stream:
        numbers[device] = numbers.get(device, 0) + 1
        log.append(f"{device} gets stream {numbers[device]}")
        return Stream(f"{device}/{numbers[device]}", log)

    def module_of(kind: str) -> Any:
        return SimpleNamespace(
            Stream=make, current_stream=lambda device: Stream(f"{device}/work", log)
        )

    return OffloadStreams(count, module_of), log


def test_streams_are_taken_in_turn_and_each_waits_for_the_work():
    streams, log = made_up(2)
    taken = [streams.take(CUDA).name for _ in range(5)]
    assert taken == ["cuda:0/1", "cuda:0/2", "cuda:0/1", "cuda:0/2", "cuda:0/1"]
    assert log == [
        "cuda:0 gets stream 1",
        "cuda:0 gets stream 2",
        "cuda:0/1 waits for cuda:0/work",
        "cuda:0/2 waits for cuda:0/work",
        "cuda:0/1 waits for cuda:0/work",
        "cuda:0/2 waits for cuda:0/work",
        "cuda:0/1 waits for cuda:0/work",
    ]


def test_each_device_has_its_own_turn():
    streams, _ = made_up(3)
    assert streams.take(CUDA).name == "cuda:0/1"
    assert streams.take(XPU).name == "xpu:0/1"
    assert streams.take(CUDA).name == "cuda:0/2"


@pytest.mark.parametrize("device", [None, torch.device("cpu"), torch.device("mps")])
def test_devices_without_streams_get_none(device):
    streams, log = made_up(2)
    assert streams.take(device) is None
    assert streams.current(device) is None
    assert log == []


def test_no_streams_when_none_are_wanted():
    streams, log = made_up(0)
    assert streams.take(CUDA) is None
    assert log == []


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("cuda", {}, 2),
        ("cuda", {"async_offload": 4}, 4),
        ("cuda", {"async_offload": 0}, 0),
        ("cuda", {"disable_async_offload": True}, 0),
        ("rocm", {}, 0),
        ("rocm", {"async_offload": 2}, 2),
        ("xpu", {}, 0),
        ("cpu", {}, 0),
    ],
)
def test_how_many_streams_there_are_follows_machine_and_options(kind, options, count):
    machine = Machine(kind=kind, device="cpu", total_bytes=8 * GIB, ram_total_bytes=32 * GIB)
    with current.running_as(machine, Options(**options)):
        assert count == offload.NUM_STREAMS
        assert offload.process_streams().count == count


def test_other_names_are_not_found():
    with pytest.raises(AttributeError) as caught:
        _ = offload.NUM_RIVERS
    assert str(caught.value) == (
        "module 'holdfast.residency.model_management.models.offload' has no attribute 'NUM_RIVERS'"
    )


def test_a_machine_without_a_card_copies_without_streams():
    host = Machine(kind="cpu", device="cpu", total_bytes=GIB, ram_total_bytes=GIB)
    with current.running_as(host):
        assert offload.get_offload_stream(torch.device("cpu")) is None
        assert offload.current_stream(torch.device("cpu")) is None
        offload.sync_stream(torch.device("cpu"), None)


def test_a_cast_that_changes_nothing_is_the_weight_itself():
    weight = torch.arange(6.0).reshape(2, 3)
    assert cast_to(weight) is weight
    assert cast_to(weight, dtype=torch.float32, device=torch.device("cpu")) is weight
    copy = cast_to(weight, copy=True)
    assert copy is not weight
    assert copy.data_ptr() != weight.data_ptr()
    assert torch.equal(copy, weight)


def test_a_cast_changes_format_and_device():
    weight = torch.arange(6.0).reshape(2, 3)
    half = cast_to(weight, dtype=torch.bfloat16)
    assert (half.dtype, half.tolist()) == (torch.bfloat16, weight.tolist())
    there = cast_to(weight, dtype=torch.float16, device=torch.device("meta"))
    assert (there.device.type, there.dtype, there.shape) == ("meta", torch.float16, weight.shape)
    assert cast_to_device(weight, torch.device("meta"), None).dtype == torch.float32


def test_a_cast_keeps_the_order_of_the_numbers_in_memory():
    weight = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert cast_to(weight, device=torch.device("meta")).stride() == weight.stride()


def test_gradients_go_through_a_cast():
    weight = torch.ones(3, requires_grad=True)
    cast_to(weight, dtype=torch.float64).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
def test_copies_on_cuda_streams_are_exact():
    weights = [torch.randn(1 << 20).pin_memory() for _ in range(6)]
    total = torch.zeros(1 << 20, device="cuda")
    for weight in weights * 5:
        stream = offload.get_offload_stream(CUDA)
        assert stream is not None
        copy = cast_to(weight, device=CUDA, non_blocking=True, stream=stream)
        offload.sync_stream(CUDA, stream)
        total += copy
    expected = torch.zeros(1 << 20)
    for weight in weights * 5:
        expected += weight
    assert torch.equal(total.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
def test_copies_to_the_host_are_waited_for():
    there = torch.full((1 << 24,), 3.0, device="cuda")
    for _ in range(20):
        there += 1
        back = cast_to(there, device=torch.device("cpu"), non_blocking=True)
        assert back[-1].item() == back[0].item() == there[0].item()
