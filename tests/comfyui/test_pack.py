"""The pack in a real ComfyUI: nodes as documented, every example run, stopped and run again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.nodes import EXAMPLE_WORKFLOWS, LOCALES, NODE_CLASS_MAPPINGS, WEB, checking
from tests.comfyui import models
from tests.comfyui.client import Client, Failed, Interrupted, Outputs, Refused
from tests.comfyui.workflows import Prompt, to_api

EXAMPLES = sorted(EXAMPLE_WORKFLOWS.glob("*.json"))


@pytest.fixture(scope="module")
def info(comfy: Client) -> dict[str, Any]:
    models.install(models.make(), comfy.server.base)
    return comfy.object_info()


# ---- what ComfyUI knows


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_every_node_has_exactly_the_sockets_defaults_and_tooltips_of_its_class(
    name: str, info: dict[str, Any]
) -> None:
    assert checking.differences(name, info[name]) == []
    assert info[name]["python_module"] == "custom_nodes.holdfast"
    sockets = [info[name]["input"].get(kind, {}) for kind in ("required", "optional")]
    tooltips = [spec[1]["tooltip"] for kind in sockets for spec in kind.values()]
    assert all(tooltips)
    assert len(info[name]["output_tooltips"]) == len(info[name]["output"])


def test_the_command_finds_all_of_the_pack(
    comfy: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["comfy", "check", comfy.url])
    said = capsys.readouterr().out
    assert (status, said.splitlines()[-1]) == (0, "All is well."), said
    assert said.startswith(f"{comfy.url}: ComfyUI 0.3.75, Python 3.")
    assert f"✓ nodes         all {len(NODE_CLASS_MAPPINGS)}\n" in said
    assert main(["comfy", "check", comfy.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {part["name"]: part["state"] for part in found["parts"]} == dict.fromkeys(
        ("nodes", "web", "translations", "templates", "routes"), "ok"
    )


def test_what_comfyui_has_not_is_found(
    comfy: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As if this version had another node, another input and another file."""

    class Other(NODE_CLASS_MAPPINGS["SVMMemoryCleanupNode"]):
        @classmethod
        def INPUT_TYPES(cls) -> Any:
            return {"required": {"more": ("INT", {"default": 1})}}

    monkeypatch.setitem(NODE_CLASS_MAPPINGS, "SVMMemoryCleanupNode", Other)
    monkeypatch.setitem(NODE_CLASS_MAPPINGS, "Missing", Other)
    (tmp_path / "missing.js").write_text("")
    (tmp_path / "missing.json").write_text('{"a": 1}')
    (tmp_path / "zh-TW").mkdir()
    (tmp_path / "zh-TW" / "nodeDefs.json").write_text('{"Missing": {"display_name": "x"}}')
    for name in ("WEB", "EXAMPLE_WORKFLOWS", "LOCALES"):
        monkeypatch.setattr(checking, name, tmp_path)
    nodes, web, translations, templates, routes = checking.check(comfy.url).parts
    assert (nodes.state, nodes.found) == (
        "missing",
        f"{len(NODE_CLASS_MAPPINGS) - 2} of {len(NODE_CLASS_MAPPINGS)}",
    )
    assert nodes.problems[0] == "Missing: not there"
    assert "SVMMemoryCleanupNode: input required more is not there" in nodes.problems
    assert "SVMMemoryCleanupNode: input required memory_pointer is not ours" in nodes.problems
    assert web.problems[0] == "missing.js: not there"
    assert translations.problems == (
        "missing.json: not there",
        "zh-TW/nodeDefs.json: not as in this version",
    )
    assert templates.problems[0] == "missing.json: not there"
    assert routes.state == "ok"


def test_the_browser_loads_every_file_once(comfy: Client) -> None:
    ours = [path for path in comfy.get("/extensions") if "holdfast" in path]
    files = [f"/extensions/holdfast/{f.relative_to(WEB).as_posix()}" for f in WEB.rglob("*.js")]
    assert sorted(ours) == sorted(files)


def test_texts_of_all_languages_arrive(comfy: Client) -> None:
    texts = comfy.get("/i18n")
    assert {folder.name for folder in LOCALES.iterdir()} <= set(texts)
    for language in ("en", "zh", "zh-TW"):
        assert set(NODE_CLASS_MAPPINGS) <= set(texts[language]["nodeDefs"])


def test_starting_has_failed_nowhere_in_the_pack(comfy: Client) -> None:
    log = comfy.server.log.read_text()
    assert "(IMPORT FAILED)" not in log
    assert "Error loading" not in log  # texts that are no JSON


# ---- examples


def shown(comfy: Client, outputs: Outputs) -> None:
    """Every picture that a run has made shows something, and every text says something."""
    for node, output in outputs.items():
        for image in output.get("images", ()):
            picture = comfy.view(image).convert("RGB")
            assert len(picture.getcolors(1 << 24) or ()) > 1, (node, image)
        for text in output.get("text", ()):
            assert str(text).strip(), node


def output_nodes(prompt: Prompt, info: dict[str, Any]) -> set[str]:
    return {number for number, node in prompt.items() if info[node["class_type"]]["output_node"]}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_runs_to_success(file: Path, comfy: Client, info: dict[str, Any]) -> None:
    prompt = models.runnable(to_api(json.loads(file.read_text()), info))
    number = comfy.queue(prompt)
    outputs = comfy.wait(number, timeout=180)
    entry = comfy.history(number)
    assert entry is not None
    assert entry["status"]["status_str"] == "success"
    assert set(outputs) <= set(prompt)
    shows = {n for n in output_nodes(prompt, info) if prompt[n]["class_type"] in SHOWING}
    assert shows <= set(outputs)
    shown(comfy, outputs)


SHOWING = ("SaveImage", "PreviewImage", "PreviewAny", "SaveAnimatedWEBP", "SaveAnimatedPNG")


def test_every_node_is_in_an_example() -> None:
    used = {node["type"] for file in EXAMPLES for node in json.loads(file.read_text())["nodes"]}
    assert set(NODE_CLASS_MAPPINGS) - used == set()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_has_a_thumbnail(file: Path, comfy: Client) -> None:
    from PIL import Image

    with Image.open(file.with_suffix(".jpg")) as picture:
        assert min(picture.size) >= 200
    at = f"/api/workflow_templates/holdfast/{file.with_suffix('.jpg').name}"
    assert comfy.read(at) == file.with_suffix(".jpg").read_bytes()


# ---- stopping

SLOW = {
    "FluxTPUPipeline": {"prompt": "a handwritten seven", "steps": 1000},
    "WanTPUPipeline": {"prompt": "a handwritten seven moving right", "steps": 1000},
}


def slow_prompt(name: str, info: dict[str, Any], **changed: Any) -> Prompt:
    """A node that takes long, and one that keeps what it draws; defaults where nothing is said."""
    inputs: dict[str, Any] = {}
    for kind in ("required", "optional"):
        for key, (_, options, *_) in info[name]["input"].get(kind, {}).items():
            inputs[key] = options["default"]
    return {
        "1": {"class_type": name, "inputs": inputs | SLOW[name] | changed},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }


@pytest.mark.parametrize("name", SLOW)
def test_a_run_is_stopped_in_the_middle_and_the_next_one_runs(
    name: str, comfy: Client, info: dict[str, Any]
) -> None:
    with comfy.events(timeout=120) as events:
        number = comfy.queue(slow_prompt(name, info, seed=int(time.time())))
        events.until(lambda kind, data: kind == "progress" and 2 <= data["value"] < data["max"])
        comfy.interrupt(number)
        seen = events.until_over(number)
    kind, last = seen[-1]
    assert kind == "execution_interrupted"
    assert last["node_id"] == "1"
    with pytest.raises(Interrupted):
        comfy.wait(number)
    outputs = comfy.run(slow_prompt(name, info, steps=2, seed=7), timeout=120)
    shown(comfy, outputs)
    assert outputs["2"]["images"]


# ---- errors


def test_an_error_of_a_node_is_told_in_three_parts(comfy: Client) -> None:
    prompt = {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0},
        },
        "2": {
            "class_type": "CustomPyTorchConv2D",
            "inputs": {
                "image": ["1", 0],
                "in_channels": 4,
                "out_channels": 3,
                "kernel_size": 3,
                "stride": 1,
                "padding": 1,
                "use_bias": True,
            },
        },
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }
    with pytest.raises(Failed) as caught:
        comfy.run(prompt)
    assert caught.value.node == "2"
    assert str(caught.value) == (
        "node 2 (CustomPyTorchConv2D) failed: holdfast.base.errors.BadInput: "
        "the image [1, 8, 8, 3] has 3 channels, in_channels is 4\n"
        "  expected: pictures of [batch, height, width, 4]\n"
        "  try: set in_channels to 3"
    )


def test_a_value_that_no_widget_allows_is_refused_before_anything_runs(comfy: Client) -> None:
    prompt = {
        "1": {
            "class_type": "SVMTopologyAwareAllocNode",
            "inputs": {"size_mb": 0, "set_affinity": False},
        },
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}},
    }
    with pytest.raises(Refused) as caught:
        comfy.run(prompt)
    assert caught.value.status == 400
    assert caught.value.errors()["1"] == ["Value 0 smaller than min of 1 (size_mb)"]


def test_the_server_is_the_one_that_was_started(comfy: Client) -> None:
    assert comfy.server.running
    assert os.getpgid(comfy.server.process.pid) == comfy.server.process.pid
