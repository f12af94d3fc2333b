"""What every carrier promises, on those that are here; and the clock and lanes of the simulated."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.base.errors import NotFound, OutOfMemory
from holdfast.residency.carriers import CARRIERS, carrier_for, measure
from holdfast.residency.carriers.plain import Plain
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.packing.pack import pack
from holdfast.residency.stream.slabs import slab

MAKERS: dict[str, Callable[[], Any]] = {
    "simulated, late": lambda: Simulated(eager=0.0),
    "simulated, by chance": lambda: Simulated(eager=0.5, seed=3),
    "simulated, at once": lambda: Simulated(eager=1.0),
    "cpu": lambda: Plain("cpu"),
    "cuda": lambda: carrier_for("cuda"),
    "cuda, copied by torch": lambda: _by_torch(carrier_for("cuda")),
}


def _by_torch(carrier: Any) -> Any:
    """Without the driver's own call, as on a machine where that is not found."""
    carrier._send = None
    return carrier


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.gpu if "cuda" in n else ()) for n in MAKERS]
)
def carrier(request: pytest.FixtureRequest) -> Any:
    if "cuda" in request.param and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    return MAKERS[request.param]()


def numbers(nbytes: int, start: int = 0) -> torch.Tensor:
    host = slab(nbytes)
    host.copy_((torch.arange(nbytes) + start) % 251)
    return host


def test_device_memory_is_bytes_on_the_device(carrier: Any) -> None:
    memory = carrier.empty(1000)
    assert memory.dtype == torch.uint8
    assert memory.shape == (1000,)
    assert memory.device == carrier.device
    assert not memory.is_inference()
    assert carrier.empty(0).numel() == 0


def test_memory_taken_in_inference_mode_can_be_filled_outside_of_it(carrier: Any) -> None:
    with torch.inference_mode():
        memory = carrier.empty(64)
    carrier.settle(carrier.copy([(memory, numbers(64))], []))
    assert torch.equal(memory.cpu(), numbers(64))


def test_copies_are_done_once_their_mark_has_passed(carrier: Any) -> None:
    first, second = carrier.empty(1000), carrier.empty(500)
    mark = carrier.copy([(first, numbers(1000)), (second, numbers(500, 7))], [])
    carrier.settle(mark)
    assert torch.equal(first.cpu(), numbers(1000))
    assert torch.equal(second.cpu(), numbers(500, 7))


def test_copies_to_one_place_come_in_their_order(carrier: Any) -> None:
    memory = carrier.empty(100)
    marks: list[Any] = []
    for start in range(5):
        marks.append(carrier.copy([(memory, numbers(100, start))], marks[-1:]))
    carrier.settle(marks[-1])
    assert torch.equal(memory.cpu(), numbers(100, 4))


def test_a_decode_gives_the_bytes_that_were_packed(carrier: Any) -> None:
    weights = (torch.randn(40_000, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    packed = pack(weights.view(torch.uint8), "bf16")
    assert packed is not None
    layout, payload = packed
    arrived, target = carrier.empty(payload.numel()), carrier.empty(layout.raw_bytes)
    decode = carrier.decoding([(arrived, layout, target)])
    for again in range(4):  # some devices learn it
        target.fill_(again)
        carrier.wait(carrier.copy([(arrived, payload)], []))
        carrier.settle(decode() if again else carrier.decode([(arrived, layout, target)]))
        assert torch.equal(target.cpu(), weights.view(torch.uint8))


def test_what_is_computed_after_a_wait_sees_the_copy(carrier: Any) -> None:
    memory = carrier.empty(512)
    with carrier.computing():
        carrier.wait(carrier.copy([(memory, numbers(512))], [carrier.mark()]))
        found = memory + 0
    carrier.synchronize()
    assert torch.equal(found.cpu(), numbers(512))


def test_what_is_computed_after_a_drain_sees_every_copy(carrier: Any) -> None:
    memories = [carrier.empty(256) for _ in range(4)]
    with carrier.computing():
        for number, memory in enumerate(memories):
            carrier.copy([(memory, numbers(256, number))], [])
        carrier.drain()
        found = torch.stack(memories)
    carrier.synchronize()
    for number, row in enumerate(found):
        assert torch.equal(row.cpu(), numbers(256, number))


def test_a_copy_waits_for_what_was_computed_before_its_mark(carrier: Any) -> None:
    memory = carrier.empty(256)
    carrier.settle(carrier.copy([(memory, numbers(256))], []))
    with carrier.computing():
        read = memory + 0
        mark = carrier.copy([(memory, numbers(256, 9))], [carrier.mark()])
    carrier.settle(mark)
    carrier.synchronize()
    assert torch.equal(read.cpu(), numbers(256))
    assert torch.equal(memory.cpu(), numbers(256, 9))


def test_timed_marks_never_run_backwards(carrier: Any) -> None:
    memory = carrier.empty(4096)
    begin = carrier.mark(timed=True)
    carrier.wait(carrier.copy([(memory, numbers(4096))], [begin]))
    end = carrier.mark(timed=True)
    carrier.synchronize()
    assert carrier.between_ms(begin, end) >= 0


def test_figures_make_sense(carrier: Any) -> None:
    assert carrier.total_bytes() > 0
    assert carrier.outside_bytes() >= 0
    assert carrier.others_bytes() >= 0
    assert carrier.others_peak_bytes(reset=True) >= 0
    assert 0 <= carrier.slack_bytes(1 << 30) < 1 << 30
    rates = carrier.rates()
    assert rates.link_gb_s > 0
    assert rates.decode_gb_s > 0
    assert carrier.rates() is rates


def test_the_decoder_is_only_tried_where_something_is_packed(monkeypatch):
    tried = []
    monkeypatch.setattr(measure, "_decode_gb_s", lambda *_: tried.append(1) or 7.0)
    carrier = carrier_for("cpu")
    link = carrier.rates(packed=False)
    assert not tried
    assert carrier.rates(packed=False) is link
    assert carrier.rates().decode_gb_s == 7.0
    assert carrier.rates(packed=False) is carrier.rates()
    assert len(tried) == 1


def test_a_limit_can_be_set_and_lifted(carrier: Any) -> None:
    carrier.limit(carrier.total_bytes() // 2)
    carrier.limit(None)
    carrier.tidy()
    assert carrier.empty(1024).numel() == 1024


@pytest.mark.gpu
def test_a_cuda_device_refuses_more_than_its_limit() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    carrier = carrier_for("cuda")
    carrier.limit(carrier.outside_bytes() + (64 << 20))
    try:
        with pytest.raises(OutOfMemory) as raised:
            carrier.empty(1 << 30)
    finally:
        carrier.limit(None)
    assert str(raised.value) == (
        f"cannot take 1.1 GB on {carrier.name} for weights\n"
        "  expected: that much free memory inside of the budget\n"
        "  try: a smaller budget for weights, or smaller pictures"
    )


# ---- by name


@pytest.mark.parametrize("name", ["cpu", "simulated"])
def test_devices_have_carriers_by_name(name: str) -> None:
    made = carrier_for(name)
    assert made.name == name
    assert carrier_for(made) is made


def test_a_torch_device_is_a_name() -> None:
    assert carrier_for(torch.device("cpu")).device == torch.device("cpu")


@pytest.mark.parametrize("device", ["abacus", "abacus:3", "", None])
def test_a_device_without_a_carrier_is_not_found(device: Any) -> None:
    with pytest.raises(NotFound) as raised:
        carrier_for(device)
    assert str(raised.value) == (
        f"cannot move weights to device {str(device)!r}\n  expected: one of {', '.join(CARRIERS)}"
    )


# ---- the simulated device


def test_the_simulated_device_counts_every_byte_until_it_is_dropped() -> None:
    sim = Simulated(capacity_bytes=10_000)
    memory = sim.empty(6000)
    part = memory[100:200]
    with pytest.raises(OutOfMemory) as raised:
        sim.empty(4001)
    assert str(raised.value) == (
        "cannot take 4.0 KB on simulated for weights\n"
        "  expected: that much free memory inside of the budget\n"
        "  try: a smaller budget for weights, or smaller pictures"
    )
    del memory
    assert sim.held_bytes == 6000
    del part
    gc.collect(0)
    assert (sim.held_bytes, sim.peak_bytes) == (0, 6000)


def test_the_simulated_device_counts_what_is_computed() -> None:
    sim = Simulated(capacity_bytes=10_000)
    x = torch.ones(1000)
    with sim.computing():
        y = x + 1
        assert sim.computed_bytes == 4000
        z = y[:10]
        del y
        assert sim.computed_bytes == 4000
        with pytest.raises(torch.OutOfMemoryError, match="simulated has no 8000 bytes for what"):
            torch.cat((x, x))
        del z
    assert sim.computed_bytes == 0
    assert sim.peak_bytes == 4000


def test_new_memory_of_the_simulated_device_is_not_zeros() -> None:
    assert bool((Simulated().empty(100) == 255).all())


def test_a_late_lane_leaves_a_copy_undone_until_somebody_waits() -> None:
    sim = Simulated(eager=0.0)
    memory = sim.empty(100)
    mark = sim.copy([(memory, numbers(100))], [])
    assert bool((memory == 255).all())
    sim.settle(mark)
    assert torch.equal(memory, numbers(100))


def test_an_early_lane_does_a_copy_before_anybody_waits() -> None:
    sim = Simulated(eager=1.0)
    memory = sim.empty(100)
    sim.copy([(memory, numbers(100))], [])
    assert torch.equal(memory, numbers(100))


def test_the_clock_of_the_simulated_device_is_that_of_its_link() -> None:
    sim = Simulated(link_gb_s=1.0)
    memory = sim.empty(1_000_000)
    begin = sim.mark(timed=True)
    sim.wait(sim.copy([(memory, numbers(1_000_000))], [begin]))
    assert sim.between_ms(begin, sim.mark(timed=True)) == pytest.approx(1.0 + sim.rates().copy_ms)
    assert sim.copied_bytes == 1_000_000


def test_copies_and_computing_run_beside_each_other() -> None:
    sim = Simulated(link_gb_s=1.0, compute_gflops=0.001, memory_gb_s=1000)
    memory, x = sim.empty(1_000_000), torch.ones(1000)
    host = numbers(1_000_000)
    with sim.computing():
        begin = sim.mark(timed=True)
        mark = sim.copy([(memory, host)], [begin])
        kept = [x + 1]  # 1000 operations take a millisecond
        sim.wait(mark)
        kept.append(x + 1)
        end = sim.mark(timed=True)
    sim.synchronize()
    assert sim.between_ms(begin, end) == pytest.approx(2.0, rel=0.1)


def test_a_broken_copy_is_done_by_the_next_who_waits() -> None:
    sim = Simulated(eager=0.0)
    memory, calls = sim.empty(10), []

    class Breaks:
        def numel(self) -> int:
            return 10

        def copy_(self, source: torch.Tensor) -> None:
            calls.append(source)
            if len(calls) == 1:
                raise KeyboardInterrupt
            memory.copy_(source)

    mark = sim.copy([(Breaks(), numbers(10))], [])  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyboardInterrupt):
        sim.settle(mark)
    sim.settle(mark)
    assert torch.equal(memory, numbers(10))


class _Full(Plain):
    """A device with little room."""

    def __init__(self, room: int) -> None:
        super().__init__("cpu")
        self.room = room

    def empty(self, nbytes: int) -> torch.Tensor:
        if nbytes > self.room:
            raise torch.OutOfMemoryError
        return super().empty(nbytes)


def test_a_full_device_is_measured_with_smaller_samples() -> None:
    assert _Full(20 << 20).rates().link_gb_s > 0


def test_a_device_without_room_for_a_sample_says_so() -> None:
    with pytest.raises(OutOfMemory) as raised:
        _Full(1 << 20).rates()
    assert str(raised.value) == (
        "cannot find out how fast cpu is: it has no room for a sample\n"
        "  expected: 33.6 MB of free memory inside of the budget\n"
        "  try: a larger budget"
    )
