"""`torch.holdfast` and `torch.accelerator`: devices, seeds, streams, memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import holdfast.torch  # noqa: F401
from holdfast import memory
from holdfast.compute.torch_device.api.memory_figures import _total_bytes
from holdfast.compute.torch_device.errors import NoMemory, Refused
from holdfast.compute.torch_device.shim import build
from tests.tolerance import assert_near

DEVICE = "holdfast"
there = torch.holdfast  # type: ignore[attr-defined]
MB = 1 << 20


# ---- devices


def test_there_is_one_device_and_it_is_the_current_one() -> None:
    assert there.is_available()
    assert there.is_initialized()
    assert (there.device_count(), there.current_device()) == (1, 0)
    assert torch.get_device_module(DEVICE) is there
    assert there.get_device_name() == "Holdfast, NumPy engine"


def test_properties_say_what_the_device_is() -> None:
    found = there.get_device_properties("holdfast:0")
    assert (found.name, found.engine) == ("Holdfast, NumPy engine", "numpy")
    assert found.total_memory == _total_bytes()
    assert found.multi_processor_count >= 1


@pytest.mark.parametrize("given", [None, 0, "holdfast", "holdfast:0", torch.device("holdfast", 0)])
def test_the_device_goes_by_all_its_names(given: object) -> None:
    there.synchronize(given)
    if given is not None:
        there.set_device(given)
        with there.device(given):
            assert torch.ones(1, device=DEVICE).device == torch.device("holdfast:0")


@pytest.mark.parametrize(
    ("given", "shown"), [(1, "1"), ("holdfast:1", "'holdfast:1'"), ("cpu", "'cpu'"), (True, "True")]
)
def test_a_device_that_is_not_there_is_refused(given: object, shown: str) -> None:
    with pytest.raises(Refused) as caught:
        there.set_device(given)
    assert str(caught.value) == (
        f"there is no device {shown} here\n  expected: 'holdfast', 'holdfast:0' or 0"
    )


@pytest.mark.parametrize("make", [torch.empty, torch.ones, torch.randn])
def test_tensors_are_made_on_no_other_device(make) -> None:
    with pytest.raises(RuntimeError, match=r"^there is no device 'holdfast:1' here\n"):
        make(2, device="holdfast:1")
    with pytest.raises(RuntimeError, match=r"^there is no device 'holdfast:1' here\n"):
        torch.ones(2).to("holdfast:1")


def test_a_negative_number_leaves_the_current_device_alone() -> None:
    there.set_device(-1)
    with there.device(-1), there.device_of(torch.ones(1)):
        assert there.current_device() == 0


def test_every_name_of_the_module_is_there() -> None:
    for name in there.__all__:
        assert getattr(there, name) is not None
        assert name in dir(there)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        there.nonsense  # noqa: B018


# ---- random numbers


@pytest.fixture(autouse=True)
def _same_seed_after() -> Iterator[None]:
    state, cpu = there.get_rng_state(), torch.get_rng_state()
    yield
    there.set_rng_state(state)
    torch.set_rng_state(cpu)


def _drawn(device: str) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [
        torch.randn(5, device=device),
        torch.rand(100, device=device),
        torch.randint(0, 1000, (50,), device=device),
        torch.randn(3, device=device, dtype=torch.float64),
        torch.randperm(20, device=device),
        torch.bernoulli(torch.full((40,), 0.3, device=device)),
        torch.empty(30, device=device).uniform_(-2, 2),  # one rounding, also where two are fused
    ]


def test_a_seed_draws_on_the_device_what_it_draws_on_the_cpu() -> None:
    for ours, theirs in zip(_drawn(DEVICE), _drawn("cpu"), strict=True):
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_normal_numbers_are_near_those_of_the_cpu(dtype: torch.dtype) -> None:
    """From 16 on the CPU draws by vectors: logarithms and cosines are those of its instructions."""
    drawn = []
    for device in (DEVICE, "cpu"):
        torch.manual_seed(7)
        drawn.append(torch.randn(1000, device=device, dtype=dtype).cpu())
    assert_near(*drawn, dtype)


def test_a_state_goes_between_the_device_and_the_cpu() -> None:
    there.manual_seed(11)
    torch.randn(3, device=DEVICE)  # half of a pair is left over
    state = there.get_rng_state()
    assert (state.dtype, state.device.type, state.numel()) == (torch.uint8, "cpu", 5056)
    torch.set_rng_state(state)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.randn(9), torch.randn(9, device=DEVICE).cpu())
    there.set_rng_state(torch.get_rng_state())
    assert torch.equal(torch.rand(9), torch.rand(9, device=DEVICE).cpu())


def test_all_seeds_and_states_are_the_one_devices() -> None:
    there.manual_seed_all(5)
    assert there.initial_seed() == 5
    [state] = there.get_rng_state_all()
    first = torch.rand(3, device=DEVICE)
    there.set_rng_state_all([state])
    assert torch.equal(first, torch.rand(3, device=DEVICE))
    assert there.seed() == there.initial_seed() != 5
    there.seed_all()


def test_fork_rng_brings_the_state_back() -> None:
    there.manual_seed(3)
    with torch.random.fork_rng(device_type=DEVICE):
        inside = torch.rand(4, device=DEVICE)
    assert torch.equal(inside, torch.rand(4, device=DEVICE))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_drops_the_same_numbers_twice(reentrant: bool) -> None:
    seen: list[torch.Tensor] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.nn.functional.dropout(x))
        return seen[-1].square().sum()

    x = torch.ones(200, device=DEVICE, requires_grad=True)
    checkpoint(block, x, use_reentrant=reentrant).backward()  # type: ignore[union-attr]
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert x.grad is not None
    assert torch.equal(x.grad, 8 * (seen[0] > 0))


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        there.set_rng_state(torch.zeros(3))
    assert str(caught.value) == (
        "3 numbers of torch.float32 are no state of a generator\n"
        "  expected: 5056 numbers of torch.uint8: what get_rng_state() returned"
    )
    with pytest.raises(Refused) as caught:
        there.set_rng_state([1])
    assert str(caught.value) == (
        "a list is no state of a generator\n  expected: a tensor: what get_rng_state() returned"
    )


def test_what_is_no_seed_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        there.manual_seed(1 << 70)
    assert str(caught.value) == (
        "1180591620717411303424 is no seed\n  expected: an integer of at most 64 bits"
    )


# ---- streams and events


def test_events_measure_the_time_between_them() -> None:
    start, end = there.Event(enable_timing=True), there.Event(enable_timing=True)
    before_s = time.perf_counter()
    start.record()
    time.sleep(0.02)
    there.current_stream().record_event(end)
    end.synchronize()
    assert end.query()
    assert 20 <= start.elapsed_time(end) <= (time.perf_counter() - before_s) * 1000


def test_an_event_without_a_time_measures_nothing() -> None:
    start, end = there.Event(enable_timing=True), there.Event()
    start.record()
    end.record()
    with pytest.raises(Refused) as caught:
        start.elapsed_time(end)
    assert str(caught.value) == (
        "cannot measure: an event has no time\n"
        "  expected: two events that were made with enable_timing=True and recorded"
    )


def test_every_stream_is_the_one_there_is() -> None:
    other = there.Stream()
    with there.stream(other):
        x = torch.ones(3, device=DEVICE)
    other.wait_stream(there.default_stream())
    other.wait_event(other.record_event())
    assert other == there.current_stream()
    assert other.query()
    assert x.sum().item() == 3


# ---- memory


def test_figures_follow_a_tensor() -> None:
    before = there.memory_allocated()
    x = torch.empty(4 * MB, dtype=torch.uint8, device=DEVICE)
    assert there.memory_allocated() == before + 4 * MB
    assert there.memory_reserved() >= there.memory_allocated()
    del x
    assert there.memory_allocated() == before


def test_peaks_begin_again_where_they_are_reset() -> None:
    there.reset_peak_memory_stats()
    before = there.max_memory_allocated()
    del (x := [torch.empty(8 * MB, dtype=torch.uint8, device=DEVICE)])[:]
    assert x == []
    assert there.max_memory_allocated() >= before + 8 * MB
    assert there.max_memory_reserved() >= there.max_memory_allocated()
    there.reset_peak_memory_stats()
    assert there.max_memory_allocated() == there.memory_allocated()


def test_statistics_have_torchs_names_and_add_up() -> None:
    x = torch.empty(MB, dtype=torch.uint8, device=DEVICE)
    found = there.memory_stats()
    assert found["allocated_bytes.all.current"] == there.memory_allocated() >= x.numel()
    assert (
        found["allocated_bytes.all.allocated"] - found["allocated_bytes.all.freed"]
        == found["allocated_bytes.all.current"]
    )
    assert (
        found["allocation.all.allocated"] - found["allocation.all.freed"]
        == found["allocation.all.current"]
    )
    nested = there.memory_stats_as_nested_dict()
    assert nested["reserved_bytes"]["all"]["peak"] == there.max_memory_reserved()
    assert list(found) == sorted(found)


def test_an_empty_cache_has_given_its_memory_back() -> None:
    del (x := [torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)])[:]
    kept = there.memory_reserved()
    there.empty_cache()
    assert x == []
    assert there.memory_reserved() <= kept - 60 * MB


def test_the_summary_names_the_largest_blocks() -> None:
    x = torch.empty(32 * MB, dtype=torch.uint8, device=DEVICE)
    shown = there.memory_summary()
    assert shown.startswith("memory of holdfast:0\n  allocated ")
    assert "33.6 MB on cpu from" in shown
    assert "from" not in there.memory_summary(abbreviated=True).replace("from the cache", "")
    del x


def test_free_memory_is_part_of_all() -> None:
    free, total = there.mem_get_info()
    assert 0 < free <= total == _total_bytes()


@pytest.fixture
def a_limit_of_32_mb() -> Iterator[None]:
    gc.collect()  # else garbage of other tests makes room later
    there.empty_cache()
    there.set_per_process_memory_fraction((there.memory_reserved() + 32 * MB) / _total_bytes())
    yield
    there.set_per_process_memory_fraction(1.0)


# The shim knows how much a kernel wants, and not for what.
CANNOT_JOIN = "cannot make a tensor of .*B" if build.is_loaded() else r"cannot compute cat\(.*\)"


@pytest.mark.usefixtures("a_limit_of_32_mb")
def test_a_limit_is_kept_and_can_be_caught_as_torchs_error() -> None:
    kept = torch.ones(2 * MB, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(8 * MB, device=DEVICE)
    error = caught.value
    assert isinstance(error, NoMemory)
    assert isinstance(error, MemoryError)
    in_use = there.memory_allocated()
    size = memory_text(32 * MB) if build.is_loaded() else "shape [8388608]"
    assert error.what == (
        f"cannot make a tensor of {size}: no memory for it; "
        f"{memory_text(in_use)} of the limit of {memory_text(_limit())} are in use"
    )
    assert error.expected == "tensors that fit into the limit together"
    assert error.hint == (
        "del tensors that are done with, or "
        "torch.holdfast.set_per_process_memory_fraction(1.0), which takes the limit away"
    )
    with pytest.raises(NoMemory, match=rf"^{CANNOT_JOIN}: no memory for .*; "):
        torch.cat([kept] * 5)
    assert (kept + 1).sum().item() == 4 * MB  # what fits is still computed
    assert there.mem_get_info()[1] == _limit()


@pytest.mark.usefixtures("a_limit_of_32_mb")
def test_garbage_makes_room_before_a_limit_is_felt() -> None:
    loop: list[object] = [torch.empty(6 * MB, device=DEVICE)]
    loop.append(loop)
    del loop
    assert torch.empty(6 * MB, device=DEVICE).numel() == 6 * MB


@pytest.mark.usefixtures("a_limit_of_32_mb")
def test_a_limit_felt_in_a_backward_pass_is_raised_by_it() -> None:
    x = torch.ones(MB, device=DEVICE, requires_grad=True)
    loss = x.expand(4, MB).sum()
    x.register_hook(lambda grad: torch.cat([grad] * 20))
    with pytest.raises(NoMemory, match=f"^{CANNOT_JOIN}"):
        loss.backward()


def memory_text(size: int) -> str:
    from holdfast.base.units import format_bytes

    return format_bytes(size)


def _limit() -> int:
    return memory.memory_manager.pool("cpu").pool.core.limit


def test_a_fraction_can_be_asked_for_and_taken_away() -> None:
    assert there.get_per_process_memory_fraction() == 1.0
    there.set_per_process_memory_fraction(0.5)
    assert there.get_per_process_memory_fraction() == 0.5
    assert _limit() == int(0.5 * _total_bytes())
    there.set_per_process_memory_fraction(1)
    assert (_limit(), there.get_per_process_memory_fraction()) == (0, 1.0)


@pytest.mark.parametrize("given", [0, 1.5, -1, "half", True])
def test_what_is_no_fraction_is_refused(given: object) -> None:
    with pytest.raises(Refused) as caught:
        there.set_per_process_memory_fraction(given)
    assert str(caught.value) == (
        f"cannot use {given!r} of the memory\n  expected: a number above 0, up to 1"
    )


# ---- Holdfast's own eyes


def _line_of(comment: str) -> str:
    """Where this file has a line that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(n for n, t in enumerate(lines, 1) if t.endswith(comment))} "


@pytest.mark.parametrize("side", [3, 300])
def test_a_recording_names_the_line_that_made_a_tensor(side: int) -> None:
    torch.ones(1, device=DEVICE)
    with memory.memory_profiler.record() as record:
        made = torch.empty(side, side, device=DEVICE)  # recorded
    left = {share.name: share.bytes for share in record.report().left_by_location()}
    [line] = [name for name in left if f"{name} ".startswith(_line_of("# recorded"))]
    assert left[line] == made.nbytes


def test_a_tag_counts_the_tensors_made_under_it() -> None:
    x = torch.ones(MB, dtype=torch.uint8, device=DEVICE)
    with memory.tag("test of the device") as counted:
        y = x + 1
    assert counted.allocated_bytes == y.nbytes == MB


@pytest.mark.slow
def test_the_leak_finder_names_a_leaked_tensor() -> None:
    torch.ones(1, device=DEVICE)
    memory.enable_memory_debugging(True)
    try:
        leaked = [torch.empty(5000, device=DEVICE)]  # leaked
        torch.empty(9000, device=DEVICE)
        found = [leak for leak in memory.check_memory_leaks() if leak.size >= 16384]
    finally:
        memory.enable_memory_debugging(False)
    assert [leak.size for leak in found] == [leaked[0].nbytes]
    assert found[0].location.startswith(_line_of("# leaked"))


def test_numpy_arrays_of_the_program_are_left_alone() -> None:
    torch.ones(3, device=DEVICE)
    before = there.memory_allocated()
    numpy.ones(MB)
    assert there.memory_allocated() == before


# ---- torch.accelerator


def test_the_device_is_torchs_accelerator() -> None:
    found = torch.accelerator.current_accelerator()
    assert found == torch.device(DEVICE)
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    torch.accelerator.set_stream(torch.accelerator.current_stream())
    with torch.accelerator.device_index(0):
        assert torch.ones(1, device=DEVICE).item() == 1


def test_the_accelerators_memory_is_the_devices() -> None:
    x = torch.empty(MB, dtype=torch.uint8, device=DEVICE)
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == there.memory_allocated() >= x.numel()
    assert accelerator.memory_stats() == there.memory_stats()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.max_memory_allocated() == there.max_memory_allocated()
    assert accelerator.max_memory_reserved() == there.max_memory_reserved()
    assert accelerator.get_memory_info()[1] == _total_bytes()
    accelerator.empty_cache()
    accelerator.empty_host_cache()  # ends the process where nobody answers


def test_the_accelerator_knows_the_number_formats() -> None:
    formats = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64} <= formats
