"""Memory for somebody who looks again and again."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, cast

import pytest

from holdfast.nodes import live
from holdfast.nodes.live import Live, NodePeak, Peaks, Point
from holdfast.nodes.memory.sampling import THREAD, Device, Peak, Sample, Span

MB = 10**6


class State(Enum):
    """As ComfyUI calls them."""

    RUNNING = "running"
    FINISHED = "finished"


class Comfy:
    """As much of ComfyUI as is looked at: a queue, and the progress of nodes."""

    def __init__(self) -> None:
        self.prompt_id: str | None = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.dynprompt = self
        self.waiting: list[tuple[int, str, dict[str, Any]]] = []

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        running = [] if self.prompt_id is None else [(0, self.prompt_id, {})]
        return running, self.waiting

    def get_tasks_remaining(self) -> int:
        return sum(map(len, self.get_current_queue_volatile()))

    def get_display_node_id(self, node: str) -> str:
        return node

    def has_node(self, node: str) -> bool:
        return True

    def get_node(self, node: str) -> dict[str, str]:
        return {"class_type": f"Kind{node}"}

    def run(self, prompt: str | None, node: str | None = None, done: float = 0) -> None:
        """Be in this node of this prompt, so far."""
        self.prompt_id = prompt
        for entry in self.nodes.values():
            entry["state"] = State.FINISHED
        if node is not None:
            self.nodes[node] = {"state": State.RUNNING, "value": done, "max": 4.0}


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Comfy:
    made = Comfy()
    server: Any = types.ModuleType("server")
    server.PromptServer = types.SimpleNamespace(instance=types.SimpleNamespace(prompt_queue=made))
    progress: Any = types.ModuleType("comfy_execution.progress")
    progress.get_progress_state = lambda: made
    monkeypatch.setitem(sys.modules, "server", server)
    monkeypatch.setitem(sys.modules, "comfy_execution.progress", progress)
    return made


@pytest.fixture
def looking() -> Iterator[Callable[..., Live]]:
    """Makes lookers that are certainly over with the test."""
    made: list[Live] = []

    def make(**options: float) -> Live:
        made.append(Live(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert not _threads()


def _threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == THREAD]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_making_one_starts_nothing(looking: Callable[..., Live]) -> None:
    assert not looking().watching
    assert not _threads()


def test_a_look_shows_the_memory_of_the_machine_and_of_this_process(
    looking: Callable[..., Live],
) -> None:
    seen = looking().look()
    assert 10 * MB < seen.ram.process_bytes < seen.ram.total_bytes
    assert 0 < seen.ram.used_bytes <= seen.ram.total_bytes
    assert seen.working is None
    assert seen.prompts == 0
    assert seen.peaks == Peaks()
    assert seen.recent == ()


def test_a_look_is_plain_json(looking: Callable[..., Live]) -> None:
    document = json.loads(json.dumps(looking().look(0.0).to_dict()))
    assert set(document) == {
        "at_s",
        "process",
        "ram",
        "devices",
        "pinned_bytes",
        "models",
        "working",
        "prompts",
        "peaks",
        "recent",
    }


def test_a_second_look_uses_the_same_thread(looking: Callable[..., Live]) -> None:
    one = looking()
    one.look()
    one.look()
    assert len(_threads()) == 1


def test_the_thread_ends_by_itself_when_nobody_looks_any_more(
    looking: Callable[..., Live],
) -> None:
    one = looking(lease_s=0.1, interval_s=0.01)
    one.look()
    assert one.watching
    _until(lambda: not one.watching and not _threads())


def test_looking_again_puts_the_end_off(looking: Callable[..., Live]) -> None:
    one = looking(lease_s=20.0, interval_s=0.01)
    one.look()
    first_s = one._end_s
    one.look()
    assert one._end_s > first_s
    assert one.watching


def test_a_look_after_the_end_begins_anew(looking: Callable[..., Live]) -> None:
    one = looking(lease_s=0.05, interval_s=0.01)
    one.look()
    _until(lambda: not one.watching)
    assert one.look().ram.process_bytes > 0
    assert one.watching


def test_the_running_node_is_shown_with_its_progress(
    comfy: Comfy, looking: Callable[..., Live]
) -> None:
    comfy.run("p1", "7", done=3)
    comfy.waiting.append((1, "p2", {}))
    seen = looking().look()
    assert seen.working == live.Working("p1", "7", "Kind7", 3.0, 4.0)
    assert seen.prompts == 2


def test_peaks_are_of_the_last_prompt_and_stay_when_it_is_over(
    comfy: Comfy, looking: Callable[..., Live]
) -> None:
    one = looking(interval_s=60)
    for prompt in ("p1", "p2"):
        for node in ("1", "2"):
            comfy.run(prompt, node)
            one.look()
            one.look()
    comfy.run(None)
    seen = one.look().peaks
    assert seen.prompt == "p2"
    assert sorted((peak.node, peak.kind) for peak in seen.nodes) == [("1", "Kind1"), ("2", "Kind2")]
    assert all(peak.ram_bytes > 10 * MB and peak.device_bytes is None for peak in seen.nodes)


def test_peaks_stay_when_nobody_has_looked_for_a_while(
    comfy: Comfy, looking: Callable[..., Live]
) -> None:
    one = looking(lease_s=0.05, interval_s=0.01)
    comfy.run("p1", "3")
    one.look()
    comfy.run(None)
    _until(lambda: not one.watching)
    assert [peak.node for peak in one.peaks().nodes] == ["3"]
    assert [peak.node for peak in one.look().peaks.nodes] == ["3"]


def test_the_highest_peak_comes_first() -> None:
    peaks = {
        "ram": Peak("ram", 900 * MB, None, 0, 1.0),
        "small": Peak("small", 100 * MB, 10 * MB, 0, 1.0),
        "large": Peak("large", 100 * MB, 80 * MB, 0, 1.00049),
    }
    sampler = types.SimpleNamespace(
        nodes=[Span("large", "KSampler", "p1", 0.0)], peaks=lambda prompt: peaks
    )
    found = live._peaks(cast("Any", sampler))
    assert found.prompt == "p1"
    assert found.nodes[0] == NodePeak("large", "KSampler", 100 * MB, 80 * MB, 0, 1.0)
    assert [one.node for one in found.nodes] == ["large", "small", "ram"]


def _sample(at_s: float, ram: int, used: int | None = None) -> Sample:
    devices = () if used is None else (Device("cuda:0", used // 2, used, used, 10**9),)
    return Sample(at_s, ram, 10**9, devices, 0)


def test_recent_points_are_those_after_a_time() -> None:
    samples = [_sample(1.0, 10, 5), _sample(2.0, 20, 7), _sample(3.0, 15)]
    assert live.recent(samples, 1.0) == (Point(2.0, 20, 7), Point(3.0, 15, None))
    assert live.recent(samples, 3.0) == ()
    assert live.recent(samples, None) == ()


def test_recent_points_are_few_and_the_highest_is_among_them() -> None:
    samples = [_sample(float(at), 1 + (at == 1234) * 99) for at in range(5000)]
    points = live.recent(samples, -1.0)
    assert len(points) <= live.MOST_RECENT
    assert max(point.ram_bytes for point in points) == 100
    assert points[-1].at_s == 4999.0


def test_devices_are_shown_with_all_their_figures() -> None:
    assert live._devices(_sample(1.0, 10, 8)) == (live.Device("cuda:0", None, 8, 10**9, 4, 8),)


def test_models_of_holdfast_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.xla, "list_loaded", lambda: [("small", 1), ("tiny-flux", 5 * MB)])
    assert live.list_models() == (
        live.Model("tiny-flux", "xla", 5 * MB, 0, "holdfast"),
        live.Model("small", "xla", 1, 0, "holdfast"),
    )


def test_a_look_goes_through_no_objects_and_starts_no_process(
    comfy: Comfy, looking: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dear(*_: object, **__: object) -> None:
        raise AssertionError("a look is to be cheap")

    one = looking()
    comfy.run("p1", "1")
    for module, name in ((gc, "get_objects"), (gc, "collect"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, dear)
    assert one.look(0.0).prompts == 1
