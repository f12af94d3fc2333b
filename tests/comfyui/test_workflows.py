"""Saved workflows become what ComfyUI's API takes, or an error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comfyui.workflows import to_api

INFO: dict[str, Any] = {
    "Load": {
        "input": {"required": {"image": [["a.png", "b.png"], {"image_upload": True}]}},
        "python_module": "nodes",
    },
    "Draw": {
        "input": {
            "required": {
                "image": ["IMAGE", {}],
                "seed": ["INT", {"default": 1, "control_after_generate": True}],
                "steps": ["INT", {"default": 4}],
                "text": ["STRING", {"forceInput": True}],
            },
            "optional": {"kind": [["soft", "hard"]], "size": ["FLOAT", {"default": 0.5}]},
            "hidden": {"unique_id": "UNIQUE_ID"},
        },
        "python_module": "custom_nodes.holdfast",
    },
}


def load(**more: Any) -> dict[str, Any]:
    return {"id": 1, "type": "Load", "widgets_values": ["b.png", "image"], **more}


def draw(values: Any, inputs: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    sockets = [{"name": "image", "type": "IMAGE", "link": 1}] if inputs is None else inputs
    return {"id": 2, "type": "Draw", "inputs": sockets, "widgets_values": values, **more}


def inputs(*nodes: dict[str, Any], links: list[Any] | None = None) -> dict[str, Any]:
    """The inputs of Draw."""
    saved = {"nodes": nodes, "links": [[1, 1, 0, 2, 0, "IMAGE"]] if links is None else links}
    return to_api(saved, INFO)["2"]["inputs"]


def test_values_go_to_their_widgets_past_those_that_the_browser_adds() -> None:
    values = [7, "randomize", 20, "hard", 0.25]
    found = {"image": ["1", 0], "seed": 7, "steps": 20, "kind": "hard", "size": 0.25}
    assert inputs(load(), draw(values)) == found
    saved = {"nodes": [load()], "links": []}
    assert to_api(saved, INFO) == {
        "1": {"class_type": "Load", "inputs": {"image": "b.png"}, "_meta": {"title": "Load"}}
    }


def test_a_widget_that_became_an_input_takes_its_link() -> None:
    sockets = [
        {"name": "image", "type": "IMAGE", "link": 1},
        {"name": "steps", "type": "INT", "link": 2, "widget": {"name": "steps"}},
        {"name": "size", "type": "FLOAT", "link": None, "widget": {"name": "size"}},
    ]
    links = [
        [1, 1, 0, 2, 0, "IMAGE"],
        {"id": 2, "origin_id": 3, "origin_slot": 1, "target_id": 2, "target_slot": 1},
    ]
    other = {"id": 3, "type": "Load", "widgets_values": ["a.png"]}
    found = inputs(load(), other, draw([7, "fixed", 20, "soft", 0.1], sockets), links=links)
    assert (found["steps"], found["size"], found["seed"]) == (["3", 1], 0.1, 7)


def test_values_may_be_named_and_those_left_out_are_the_defaults() -> None:
    assert inputs(load(), draw({"seed": 3})) == {"image": ["1", 0], "seed": 3}
    found = inputs(load(), draw([7, "fixed"]))
    assert found == {"image": ["1", 0], "seed": 7, "steps": 4, "kind": "soft", "size": 0.5}


def test_links_go_through_nodes_that_do_not_run() -> None:
    socket = [{"name": "", "type": "IMAGE", "link": 1}]
    out = [{"name": "", "type": "IMAGE"}]
    links = [[1, 1, 0, 5, 0, "IMAGE"], [2, 5, 0, 2, 0, "IMAGE"]]
    draws = draw([7, "fixed", 1, "soft", 1.0], [{"name": "image", "type": "IMAGE", "link": 2}])
    reroute = {"id": 5, "type": "Reroute", "inputs": socket, "outputs": out}
    assert inputs(load(), reroute, draws, links=links)["image"] == ["1", 0]
    bypassed = {**reroute, "type": "Draw", "mode": 4}
    assert inputs(load(), bypassed, draws, links=links)["image"] == ["1", 0]
    muted = {**reroute, "type": "Draw", "mode": 2}
    assert "image" not in inputs(load(), muted, draws, links=links)
    number = {"id": 5, "type": "PrimitiveNode", "widgets_values": [42, "fixed"]}
    links = [[2, 5, 0, 2, 0, "INT"]]
    draws = draw([7, "fixed", 1, "soft", 1.0], [{"name": "steps", "type": "INT", "link": 2}])
    assert inputs(number, draws, links=links)["steps"] == 42


def test_notes_are_left_out() -> None:
    note = {"id": 9, "type": "MarkdownNote", "widgets_values": ["# hello"]}
    assert set(to_api({"nodes": [note, load()], "links": []}, INFO)) == {"1"}


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 6 values for"):
        inputs(load(), draw([7, "fixed", 20, "hard", 0.25, 9]))
    with pytest.raises(ValueError, match="has no input picture"):
        inputs(load(), draw([], [{"name": "picture", "type": "IMAGE", "link": 1}]))
    with pytest.raises(ValueError, match="there is no Gone"):
        to_api({"nodes": [{"id": 1, "type": "Gone"}], "links": []}, INFO)
    with pytest.raises(ValueError, match="subgraphs"):
        to_api({"nodes": [], "links": [], "definitions": {"subgraphs": [{}]}}, INFO)
