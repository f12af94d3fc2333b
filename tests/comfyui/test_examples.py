"""The example workflows: run, in order, drawn as their notes say, and whole in a real window.

What holds for all of them through the API is in test_pack. Thumbnails are made by
tools/example_thumbnails.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from holdfast.nodes import EXAMPLE_WORKFLOWS
from tests.comfyui import models
from tests.comfyui.client import Client
from tests.comfyui.window import Window, window
from tests.comfyui.workflows import to_api
from tests.memory import browser as chromium
from tests.pipeline.conftest import judge

__all__ = ["judge"]  # a fixture

FILES = sorted(EXAMPLE_WORKFLOWS.glob("*.json"))
NAMES = [file.stem for file in FILES]
STREAM = "stream_model"  # needs a checkpoint of the user's
TITLE_PIXELS = 30


def saved(name: str) -> dict[str, Any]:
    return json.loads((EXAMPLE_WORKFLOWS / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def info(comfy: Client) -> dict[str, Any]:
    models.install(models.make(), comfy.server.base)
    return comfy.object_info()


# ---- files


@pytest.mark.parametrize("name", NAMES)
def test_a_thumbnail_is_small_and_wide(name: str) -> None:
    path = EXAMPLE_WORKFLOWS / f"{name}.jpg"
    assert path.stat().st_size < 60_000
    with Image.open(path) as picture:
        assert (picture.format, picture.size) == ("JPEG", (640, 360))


def test_there_is_nothing_beside_examples_and_their_thumbnails() -> None:
    found = sorted(path.name for path in EXAMPLE_WORKFLOWS.iterdir())
    assert found == sorted(f"{name}{end}" for name in NAMES for end in (".json", ".jpg"))


@pytest.mark.parametrize("name", NAMES)
def test_a_note_explains_the_example(name: str) -> None:
    notes = [node for node in saved(name)["nodes"] if node["type"] == "MarkdownNote"]
    assert [note["title"] for note in notes] == ["About this workflow"]
    (text,) = notes[0]["widgets_values"]
    assert text.startswith("# ")


@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_their_titles_lie_beside_each_other(name: str) -> None:
    boxes = [(node["id"], *node["pos"], *node["size"]) for node in saved(name)["nodes"]]
    assert overlapping(boxes) == []


def overlapping(boxes: list[Any]) -> list[tuple[Any, Any]]:
    """Pairs of nodes, each (id, left, top, width, height) with its title above."""
    return [
        (a[0], b[0])
        for a, b in combinations(boxes, 2)
        if a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
        and a[2] - TITLE_PIXELS < b[2] + b[4] and b[2] - TITLE_PIXELS < a[2] + a[4]
    ]  # fmt: skip


# ---- what they do


def run(comfy: Client, info: dict[str, Any], name: str) -> dict[str, Any]:
    """What the nodes of an example show, by class."""
    prompt = models.runnable(to_api(saved(name), info))
    outputs = comfy.run(prompt, timeout=180)
    return {prompt[number]["class_type"]: output for number, output in outputs.items()}


def frames(comfy: Client, output: dict[str, Any]) -> np.ndarray:
    """The picture that was saved, or the frames of the video: [frame, height, width, colour]."""
    with Image.open(io.BytesIO(comfy.file(output["images"][0]))) as opened:
        return np.stack([np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(opened)])


@pytest.mark.parametrize(("name", "digit"), [("flux_picture", 7), ("flux_stages", 5)])
def test_the_picture_shows_the_digit_of_the_prompt(
    name: str, digit: int, comfy: Client, info: dict[str, Any], judge: ModuleType
) -> None:
    picture = frames(comfy, run(comfy, info, name)["SaveImage"])
    assert judge.recognise(picture)[0] == digit


@pytest.mark.parametrize("name", ["wan_video", "wan_stages"])
def test_the_video_shows_a_digit_that_moves_right(
    name: str, comfy: Client, info: dict[str, Any]
) -> None:
    output = run(comfy, info, name)["SaveAnimatedWEBP"]
    ink = 255.0 - frames(comfy, output).mean(axis=3)
    assert len(ink) == 9
    ink[ink < 64] = 0
    places = (ink.sum(axis=1) * np.arange(ink.shape[2])).sum(axis=1) / ink.sum(axis=(1, 2))
    assert places[-1] - places[0] > 8


def test_shared_memory_is_taken_measured_moved_and_given_back_in_that_order(
    comfy: Client, info: dict[str, Any]
) -> None:
    prompt = to_api(saved("svm_topology_workflow"), info)
    with comfy.events() as events:
        number = comfy.queue(prompt)
        seen = events.until_over(number)
    ran = [data["node"] for kind, data in seen if kind == "executing" and data["node"]]
    ours = [prompt[n]["class_type"] for n in ran if prompt[n]["class_type"].startswith("SVM")]
    assert ours == [
        "SVMTologyDiscoveryNode",
        "SVMTopologyAwareAllocNode",
        "SVMTopologyMetricsNode",
        "SVMMemoryMigrationNode",
        "SVMMemoryCleanupNode",
    ]
    outputs = comfy.wait(number)
    cleanup = next(n for n in prompt if prompt[n]["class_type"] == ours[-1])
    last = next(n for n in prompt if prompt[n]["inputs"].get("source") == [cleanup, 1])
    assert outputs[last]["text"][0].startswith("freed 256MiB at 0x")


def test_a_picture_times_a_colour_has_only_its_share_left(
    comfy: Client, info: dict[str, Any]
) -> None:
    red, green, blue = frames(comfy, run(comfy, info, "tensor_ops")["PreviewImage"]).max((0, 1, 2))
    assert (red, green, blue) == (255, 160, 64)


def test_memory_is_recorded_by_node_and_reported(comfy: Client, info: dict[str, Any]) -> None:
    comfy.free()  # what was drawn before would not be drawn again
    found = run(comfy, info, "memory_timeline")
    assert "FluxTPUPipeline #1: +" in found["HoldfastMemoryTimeline"]["text"][0]
    assert found["HoldfastMemoryTimeline"]["images"]
    assert "TPU model tiny-flux" in found["HoldfastMemoryReport"]["text"][0]


def test_memory_is_freed_before_the_picture_is_enlarged(
    comfy: Client, info: dict[str, Any]
) -> None:
    found = run(comfy, info, "free_memory")
    assert found["HoldfastFreeMemory"]["text"][0].startswith("freed: ")
    assert frames(comfy, found["SaveImage"]).shape == (1, 512, 512, 3)


def test_a_model_is_asked_about_and_streamed(comfy: Client, info: dict[str, Any]) -> None:
    found = run(comfy, info, STREAM)
    assert found["HoldfastWillItFit"]["text"][0].startswith("YES: ")
    assert frames(comfy, found["SaveImage"]).shape == (1, 64, 64, 3)


def test_the_example_that_needs_a_checkpoint_says_which_to_choose() -> None:
    nodes = saved(STREAM)["nodes"]
    (text,) = next(node for node in nodes if node["type"] == "MarkdownNote")["widgets_values"]
    assert "Choose a checkpoint of yours in Load Checkpoint" in text


# ---- in a window


@pytest.fixture(scope="module")
def shown(comfy: Client, info: dict[str, Any]) -> Iterator[Window]:
    reason = chromium.missing()
    if reason is not None:
        pytest.skip(reason)
    with chromium.browser() as started, window(started, comfy) as found:
        yield found


NOW = "() => JSON.parse(JSON.stringify(app.graph.serialize()))"
BOXES = "() => app.graph.nodes.map((n) => [n.id, ...n.pos, ...n.size].map(Math.round))"


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_a_window_shows_an_example_as_it_is_in_its_file(
    name: str, shown: Window, info: dict[str, Any]
) -> None:
    document = saved(name)
    shown.load(document)
    now = shown.page.evaluate(NOW)
    there = {node["id"]: node for node in now["nodes"]}
    for node in document["nodes"]:
        found = there[node["id"]]
        assert [round(n) for n in found["pos"]] == node["pos"]
        assert [round(n) for n in found["size"]] == node["size"], node["type"]
        assert found.get("widgets_values", []) == node.get("widgets_values", []), node["type"]
    asked = shown.page.evaluate("async () => (await app.graphToPrompt()).output")
    for node in asked.values():
        node["inputs"].pop("preview", None)  # Preview as Text has it in the browser alone
    wanted = to_api(document, info)
    assert {n: node["inputs"] for n, node in asked.items()} == {
        n: node["inputs"] for n, node in wanted.items()
    }


@pytest.mark.browser
@pytest.mark.parametrize("name", [name for name in NAMES if name != STREAM])
def test_an_example_runs_in_a_window_and_its_nodes_do_not_grow_over_others(
    name: str, shown: Window
) -> None:
    shown.load(saved(name))
    assert shown.run() == "execution_success"
    shown.until("Object.keys(app.nodeOutputs).length > 0")
    shown.page.wait_for_timeout(300)  # texts and pictures come into the nodes
    assert overlapping(shown.page.evaluate(BOXES)) == []


@pytest.mark.browser
def test_the_browser_of_templates_shows_every_example_with_its_picture(
    shown: Window, comfy: Client
) -> None:
    assert sorted(comfy.get("/api/workflow_templates")["holdfast"]) == NAMES
    page = shown.page
    shown.command("Comfy.BrowseTemplates")
    page.get_by_text("holdfast", exact=True).first.click()
    for name in NAMES:
        card = page.get_by_test_id(f"template-workflow-{name}")
        card.scroll_into_view_if_needed()
        shown.until(f"document.querySelector('img[alt={name}]')?.naturalWidth === 640")
    page.get_by_test_id("template-workflow-flux_picture").click()
    shown.until("app.graph.nodes.some((node) => node.type === 'FluxTPUPipeline')")
