"""Memory over time, and what each node took."""

from __future__ import annotations

import gc
import mmap
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.nodes.host import following
from holdfast.nodes.memory import sampling
from holdfast.nodes.memory.sampling import Device, Peak, Sample, Sampler, thin

MB = 1_000_000


class Comfy:
    """The parts of ComfyUI that are read: its queue, its progress and its prompt."""

    def __init__(self) -> None:
        self.prompt_id: str | None = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.prompt_queue = self
        self.dynprompt = self

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        prompt = {"1": {"class_type": "Load"}, "2": {"class_type": "Draw", "_meta": {"title": "D"}}}
        return ([(0, self.prompt_id, prompt)] if self.prompt_id else []), []

    def get_progress_state(self) -> Comfy:
        return self

    def get_display_node_id(self, node: str) -> str:
        return node.partition(".")[0]

    def has_node(self, node: str) -> bool:
        return node in "12"

    def get_node(self, node: str) -> dict[str, Any]:
        return {"class_type": {"1": "Load", "2": "Draw"}[node]}

    def begin(self, node: str) -> None:
        self.nodes[node] = {"state": types.SimpleNamespace(value="running")}

    def end(self, node: str) -> None:
        self.nodes[node]["state"] = types.SimpleNamespace(value="finished")


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Comfy:
    made = Comfy()
    server = types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=made))
    monkeypatch.setitem(following.sys.modules, "server", server)
    monkeypatch.setitem(following.sys.modules, "comfy_execution.progress", made)
    return made


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int | None]]]:
    """What the next samples read: (RAM, memory of a device)."""
    planned: list[tuple[int, int | None]] = []
    now = [0.0]

    def taken(running: following.Running) -> tuple[Sample, dict[str, int]]:
        ram, device = planned.pop(0)
        now[0] += 1.0
        return sample(now[0], ram, device, running.node, running.prompt), {}

    monkeypatch.setattr(sampling, "_take_with_marks", taken)
    yield planned
    assert planned == []


def sample(
    at_s: float,
    ram: int,
    device: int | None = None,
    node: str | None = None,
    prompt: str | None = None,
) -> Sample:
    devices = () if device is None else (Device("cuda:0", device, device, device, 100 * MB),)
    return Sample(at_s, ram, 0, devices, 0, node, prompt)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _fill(pages: mmap.mmap) -> None:
    for start in range(0, len(pages), mmap.PAGESIZE):
        pages[start] = 1


def test_a_sample_has_the_memory_of_this_process_and_no_node_without_comfyui() -> None:
    with mmap.mmap(-1, 64 * MB) as held:  # pages of its own, not such as other tests gave back
        before = sampling.take()
        _fill(held)
        after = sampling.take()
    assert after.ram_bytes - before.ram_bytes > 60 * MB
    assert after.ram_free_bytes > 0
    assert (after.node, after.prompt, after.devices, after.pinned_bytes) == (None, None, (), 0)
    assert after.at_s >= before.at_s
    assert following.running() == following.NOTHING
    assert not following.has_server()


def test_reading_goes_through_no_objects_and_starts_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dear(*_: object, **__: object) -> None:
        raise AssertionError("reading is to be cheap")

    for module, name in ((gc, "get_objects"), (gc, "collect"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, dear)
    assert sampling.take().ram_bytes > 0


def test_a_sampler_reads_until_it_is_stopped_and_leaves_no_thread() -> None:
    with Sampler(0.005) as sampler:
        assert sampler.running
        _until(lambda: len(sampler.samples) >= 3)
    assert not sampler.running
    assert len(sampler.samples) >= 3
    assert sampling.THREAD not in [thread.name for thread in threading.enumerate()]
    count = len(sampler.samples)
    sampler.stop()
    sampler.start()
    assert len(sampler.samples) == count


def test_a_sampler_ends_by_itself_where_it_is_told_when() -> None:
    seen: list[Sample] = []

    def enough(newest: Sample) -> bool:
        seen.append(newest)
        return len(seen) == 3

    sampler = Sampler(0.002, until=enough).start()
    _until(lambda: not sampler.running)
    assert len(seen) == 3


def test_a_peak_between_two_samples_is_seen() -> None:
    sampler = Sampler(60)
    with sampler:
        # More than this process ever had, whatever ran here before; gone before the next look.
        level = sampling.take().ram_bytes
        size = max(sampling.highest_ram_bytes() - level, 0) + 64 * MB
        with mmap.mmap(-1, size) as held:
            _fill(held)
        assert sampling.take().ram_bytes < level + size // 2
    assert max(one.ram_bytes for one in sampler.samples) > level + size * 0.9


def test_nodes_have_spans_and_peaks_over_the_level_where_they_began(
    comfy: Comfy, readings: list[tuple[int, int | None]]
) -> None:
    sampler = Sampler()
    readings += [(10, None), (10, None), (50, None), (30, None), (40, None), (35, None)]
    sampler.sample()
    comfy.prompt_id = "a"
    comfy.begin("1")
    sampler.sample()
    sampler.sample()
    comfy.end("1")
    comfy.begin("2.0.1")
    sampler.sample()
    sampler.sample()
    comfy.prompt_id = None
    sampler.sample()
    spans = [(s.node, s.kind, s.prompt, s.began_s, s.ended_s) for s in sampler.nodes]
    assert spans == [("1", "Load", "a", 2.0, 4.0), ("2", "Draw", "a", 4.0, 6.0)]
    assert sampler.peaks() == {
        "1": Peak("1", ram_bytes=50, device_bytes=None, above_bytes=40, seconds=1.0),
        "2": Peak("2", ram_bytes=40, device_bytes=None, above_bytes=10, seconds=1.0),
    }
    assert sampler.peaks("b") == {}


def test_a_peak_between_two_nodes_is_nobodys(comfy: Comfy, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter([(10, 10), (20, 90)])

    def taken(running: following.Running) -> tuple[Sample, dict[str, int]]:
        now, most = next(marks)
        return sample(float(now), now, None, running.node, running.prompt), {sampling.RAM: most}

    monkeypatch.setattr(sampling, "_take_with_marks", taken)
    sampler = Sampler()
    comfy.prompt_id = "a"
    comfy.begin("1")
    sampler.sample()
    comfy.end("1")
    comfy.begin("2")
    sampler.sample()
    assert [(one.node, one.ram_bytes) for one in sampler.samples] == [("1", 10), (None, 90)]
    assert sampler.peaks()["2"].ram_bytes == 20


def test_where_there_is_a_device_the_rise_is_the_devices(
    comfy: Comfy, readings: list[tuple[int, int | None]]
) -> None:
    comfy.prompt_id = "a"
    comfy.begin("1")
    sampler = Sampler()
    readings += [(10, 100), (90, 160), (20, 120)]
    for _ in range(3):
        sampler.sample()
    assert sampler.peaks()["1"] == Peak("1", 90, 160, 60, 2.0)


def test_a_prompt_that_failed_runs_no_node(comfy: Comfy) -> None:
    comfy.prompt_id = "a"
    comfy.begin("1")  # ComfyUI leaves it running when it fails
    assert following.running() == following.Running("a", "1", "Load")
    assert following.names() == {"1": "Load", "2": "D"}
    comfy.prompt_id = None
    assert following.running() == following.NOTHING
    assert following.names() == {}


class Cuda:
    """torch.cuda of a machine with three devices, of which the last was never used."""

    def __init__(self) -> None:
        self.initialized = True
        self.peak = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 3

    def memory_stats_as_nested_dict(self, number: int) -> dict[str, Any]:
        never = {"current": 0, "peak": 0, "allocated": 0}
        if number == 2:
            return {"allocated_bytes": {"all": never}, "reserved_bytes": {"all": never}}
        in_all = 50 if number else 0  # cudaMallocAsync does not count it
        tensors = {"current": 10, "peak": max(self.peak, 10), "allocated": in_all}
        reserved = {"current": 20, "peak": 30, "allocated": in_all}
        return {"allocated_bytes": {"all": tensors}, "reserved_bytes": {"all": reserved}}

    def mem_get_info(self, number: int) -> tuple[int, int]:
        assert number != 2, "that would make a context on it"
        return 60, 100


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sampling.sys.modules, "torch", types.SimpleNamespace(cuda=made))
    return made


def test_devices_that_torch_has_used_are_read_with_either_allocator(cuda: Cuda) -> None:
    taken = sampling.take()
    assert taken.devices == (Device("cuda:0", 10, 20, 40, 100), Device("cuda:1", 10, 20, 40, 100))
    assert taken.device_bytes == 20
    cuda.initialized = False
    assert sampling.take().devices == ()


def test_a_peak_of_a_device_between_two_samples_is_seen_once(cuda: Cuda) -> None:
    sampler = Sampler()
    sampler.sample()
    cuda.peak = 70
    sampler.sample()
    sampler.sample()
    found = [one.devices[0].allocated_bytes for one in sampler.samples]
    assert found == [10, 70, 10]


def test_a_device_that_does_not_answer_ends_the_recording(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(0.01).start()

    def lost(number: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(cuda, "mem_get_info", lost)
    _until(lambda: not sampler.running)
    assert sampler.samples


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sampler_that_fails_does_not_run_any_more() -> None:
    def fails(_: Sample) -> bool:
        raise KeyError("a later ComfyUI")

    sampler = Sampler(0.002, until=fails).start()
    _until(lambda: not sampler.running)
    assert sampler._thread is not None
    sampler._thread.join(60)  # its complaint comes a moment later, and belongs to this test


def test_what_a_workflow_calls_its_nodes_is_cut_and_may_be_nonsense(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = {
        "1": {"class_type": "Load", "_meta": "nonsense"},
        "2": {"class_type": "Load", "_meta": {"title": ["x"]}},
        "3": {"class_type": "Load", "_meta": {"title": "y" * 100_000}},
        "4": {"class_type": "Load", "_meta": {"title": " "}},
    }
    items = ([(0, "a", prompt)], [])
    monkeypatch.setattr(comfy, "get_current_queue_volatile", lambda: items)
    assert following.names() == {"1": "Load", "2": "Load", "3": "y" * 80, "4": "Load"}
    assert following.is_queued("Load")
    assert not following.is_queued("Draw")


def test_thinning_keeps_first_last_and_every_peak() -> None:
    samples = [sample(float(n), 10, 10) for n in range(64)]
    samples[5] = sample(5.0, 99, 10)
    samples[6] = sample(6.0, 10, 99)
    fewer = thin(samples)
    assert len(fewer) < 50
    assert (fewer[0], fewer[-1]) == (samples[0], samples[-1])
    assert samples[5] in fewer
    assert samples[6] in fewer
    assert [one.at_s for one in fewer] == sorted(one.at_s for one in fewer)


def test_a_long_recording_stays_small() -> None:
    sampler = Sampler(most=64)
    for _ in range(500):
        sampler.sample()
    assert len(sampler.samples) < 64
    ends = sampler.samples[0].at_s, sampler.samples[-1].at_s
    assert ends[1] > ends[0]
