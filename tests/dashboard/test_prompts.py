"""What ComfyUI runs, as those see it who look at the process."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from holdfast.dashboard.ipc import actions
from holdfast.dashboard.snapshot import process, prompts
from holdfast.dashboard.snapshot.snapshot import RunNow
from holdfast.nodes.host import following

SENT_S = 1_700_000_000.0
WORKFLOW = {
    "1": {"class_type": "CheckpointLoader", "inputs": {"ckpt_name": "large.safetensors"}},
    "2": {"class_type": "TextEncode", "inputs": {"text": "blurry", "clip": ["1", 1]}},
    "3": {"class_type": "TextEncode", "inputs": {"text": "a red seven", "clip": ["1", 1]}},
    "4": {
        "class_type": "Sampler",
        "inputs": {"negative": ["2", 0], "positive": ["3", 0], "model": ["1", 0]},
        "_meta": {"title": "Draw it"},
    },
}


class Comfy:
    """The parts of ComfyUI that are read, and its button to stop."""

    def __init__(self) -> None:
        self.prompt_id: str | None = None
        self.prompt: dict[str, Any] = WORKFLOW
        self.about: Any = {"create_time": SENT_S * 1000}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.prompt_queue = self.dynprompt = self
        self.stopped: list[bool] = []

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        now = (0, self.prompt_id, self.prompt, self.about, ["4"])
        return ([now] if self.prompt_id else []), []

    def get_display_node_id(self, node: str) -> str:
        return node.partition(".")[0]

    def has_node(self, node: str) -> bool:
        return node in self.prompt

    def get_node(self, node: str) -> dict[str, Any]:
        return self.prompt[node]

    def run(self, prompt: str, node: str, value: float = 0.0, most: float = 1.0) -> None:
        """Be in this node of this prompt, so far."""
        self.prompt_id = prompt
        state = types.SimpleNamespace(value="running")
        self.nodes = {node: {"state": state, "value": value, "max": most}}


class Clock:
    """Both clocks, set by hand."""

    def __init__(self) -> None:
        self.at_s = SENT_S + 2.0

    def time(self) -> float:
        return self.at_s

    def perf_counter(self) -> float:
        return self.at_s - SENT_S


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> Comfy:
    made = Comfy()
    modules = {
        "server": types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=made)),
        "comfy_execution.progress": types.SimpleNamespace(get_progress_state=lambda: made),
        "comfy.model_management": types.SimpleNamespace(
            interrupt_current_processing=made.stopped.append
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(prompts._State, "seen", prompts._Seen())
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(prompts, "time", made)
    return made


def run() -> RunNow:
    now = prompts.current()
    assert now is not None
    return now


def test_nothing_runs_where_there_is_no_comfyui_or_it_rests(
    comfy: Comfy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prompts.current() is None
    assert actions.interrupt() is False
    monkeypatch.delitem(sys.modules, "server")
    assert prompts.current() is None
    monkeypatch.delitem(sys.modules, following.__name__)
    assert prompts.current() is None
    assert actions.interrupt() is False


def test_a_prompt_is_a_run_with_its_node_and_how_far_that_is(comfy: Comfy, clock: Clock) -> None:
    comfy.run("p1", "4", 0.0, 20.0)
    assert run() == RunNow(
        id="p1",
        model="large.safetensors",
        prompt="a red seven",
        stage="node",
        done=0,
        total=20,
        label="Draw it",
        began_s=SENT_S,
        stage_s=0.0,
        left_s=None,
    )
    clock.at_s += 10.0
    comfy.run("p1", "4", 5.0, 20.0)
    now = run()
    assert (now.done, now.stage_s, now.left_s) == (5, 10.0, 30.0)
    assert process.take().run is not None


def test_a_node_that_does_not_tell_how_far_it_is_has_no_parts(comfy: Comfy, clock: Clock) -> None:
    comfy.run("p1", "1")
    clock.at_s += 1.0
    now = run()
    assert (now.label, now.done, now.total, now.left_s) == ("CheckpointLoader", 0, None, None)


def test_a_node_that_was_half_done_when_it_was_seen_first(comfy: Comfy, clock: Clock) -> None:
    comfy.run("p1", "4", 10.0, 20.0)
    run()
    clock.at_s += 4.0
    comfy.run("p1", "4", 14.0, 20.0)
    assert run().left_s == pytest.approx(6.0)


def test_the_next_node_begins_anew_and_the_next_prompt_after_the_last_look(
    comfy: Comfy, clock: Clock
) -> None:
    comfy.run("p1", "1")
    run()
    clock.at_s += 3.0
    comfy.run("p1", "4", 2.0, 20.0)
    now = run()
    assert (now.began_s, now.stage_s) == (SENT_S, 0.0)
    seen_s = clock.at_s
    clock.at_s += 1.0
    comfy.run("p2", "4", 0.0, 20.0)  # was sent with the first one, and has waited
    now = run()
    assert (now.id, now.began_s, now.stage_s) == ("p2", seen_s, 0.0)


def test_a_node_that_another_has_made_is_the_one_that_a_person_sees(
    comfy: Comfy, clock: Clock
) -> None:
    comfy.run("p1", "4.0.1", 3.0, 9.0)
    now = run()
    assert (now.label, now.done, now.total) == ("Draw it", 3, 9)


@pytest.mark.parametrize(
    "prompt",
    [{}, {"1": {}}, {"1": {"inputs": None}}, {"1": {"inputs": {"positive": [7, 0], "text": 3}}}],
)
def test_a_workflow_without_a_model_or_a_text(prompt: dict[str, Any], comfy: Comfy) -> None:
    comfy.prompt, comfy.about = prompt, None
    comfy.run("p1", "1")
    now = run()
    assert (now.model, now.prompt, now.label) == ("ComfyUI", "", "None" if prompt else None)


def test_a_long_text_is_cut(comfy: Comfy) -> None:
    comfy.prompt = {"1": {"class_type": "x" * 200, "inputs": {"prompt": "y" * 2000}}}
    comfy.run("p1", "1")
    now = run()
    assert (now.label, now.prompt) == ("x" * 80, "y" * 500)


def test_a_prompt_is_stopped_by_comfyuis_own_button(comfy: Comfy) -> None:
    comfy.run("p1", "4")
    assert actions.interrupt() is True
    assert comfy.stopped == [True]
