"""The nodes about memory in a real ComfyUI."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.comfyui import models
from tests.comfyui.client import Client, Interrupted, Refused
from tests.comfyui.models import node

TIMELINE, REPORT = "HoldfastMemoryTimeline", "HoldfastMemoryReport"
TOPOLOGY, FREE = "HoldfastTopologyPicture", "HoldfastFreeMemory"


@pytest.fixture(scope="module", autouse=True)
def tiny(comfy: Client) -> None:
    """The tiny models are where ComfyUI looks for them."""
    models.install(models.make(), comfy.server.base)


def drawing(**more: Any) -> models.Node:
    return node(TIMELINE, **{"theme": "dark", "width": 640, **more})


def freeing(**more: Any) -> models.Node:
    return node(FREE, **{"models": True, "caches": True, "forget_outputs": False, **more})


def sampled(seed: int, **more: models.Node) -> dict[str, models.Node]:
    """ComfyUI's own sampler on a tiny model, and nodes of ours."""
    return {**models.workflow("sd15", seed=seed, steps=3, size=128), **more}


def text_of(outputs: dict[str, dict[str, Any]], name: str) -> list[str]:
    return outputs[name]["text"][0].splitlines()


def test_the_nodes_are_there_with_their_sockets(comfy: Client) -> None:
    sockets = {
        TIMELINE: (["theme", "width"], ["after"], ["IMAGE", "STRING", "STRING"]),
        REPORT: ([], ["after"], ["STRING", "DICT"]),
        TOPOLOGY: (["measure", "theme", "width"], ["after"], ["IMAGE", "STRING"]),
        FREE: (["models", "caches", "forget_outputs"], ["anything"], ["*", "STRING"]),
    }
    for name, (required, optional, outputs) in sockets.items():
        found = comfy.object_info(name)
        assert list(found["input"].get("required", {})) == required
        assert list(found["input"]["optional"]) == optional
        assert found["input"]["optional"][optional[0]][0] == "*"
        assert found["output"] == outputs
        assert found["category"] == "Holdfast"
        assert found["output_node"] is True


def test_a_run_is_recorded_from_its_beginning_and_by_node(comfy: Client) -> None:
    prompt = sampled(
        101,
        timeline=drawing(after=["decode", 0]),
        seen=node("PreviewImage", images=["timeline", 0]),
    )
    outputs = comfy.run(prompt)
    text = text_of(outputs, "timeline")
    assert any(line.startswith("  KSampler #sampler: +") for line in text)
    assert not any("#timeline" in line for line in text)
    picture = comfy.view(outputs["timeline"]["images"][0])
    assert picture.size[0] == 640
    assert comfy.view(outputs["seen"]["images"][0]).size == picture.size
    path, _, name = text[-1].removeprefix("report: ").partition("?name=")
    page = comfy.read(path, name=name).decode()
    assert page.startswith("<!DOCTYPE html>")
    assert "KSampler #sampler" in page


def test_the_second_run_is_recorded_anew_though_its_nodes_are_kept(comfy: Client) -> None:
    prompt = sampled(102, timeline=drawing(after=["decode", 0]))
    first = comfy.run(prompt)
    identity = comfy.queue(prompt)
    second = comfy.wait(identity)
    assert "sampler" in comfy.cached(identity)
    assert "timeline" not in comfy.cached(identity)
    assert second["timeline"]["images"] != first["timeline"]["images"]
    assert not any("KSampler" in line for line in text_of(second, "timeline"))


def threads(comfy: Client) -> int:
    return len(list(Path(f"/proc/{comfy.server.process.pid}/task").iterdir()))


def test_no_thread_stays_behind_whatever_becomes_of_the_prompt(comfy: Client) -> None:
    comfy.run(sampled(103))
    comfy.idle()
    before = settled(comfy)
    refused = sampled(104, timeline=drawing(width=-5))
    with pytest.raises(Refused):
        comfy.run(refused)
    long = sampled(105, timeline=drawing(after=["decode", 0]))
    long["sampler"]["inputs"]["steps"] = 1000
    with comfy.events() as events:
        identity = comfy.queue(long)
        waits = comfy.queue(sampled(106, timeline=drawing(after=["decode", 0])))
        events.until(lambda kind, one: kind == "progress" and one["max"] == 1000)
        comfy.cancel(waits)
        comfy.interrupt(identity)
    with pytest.raises(Interrupted):
        comfy.wait(identity)
    end_s = time.monotonic() + 90
    while threads(comfy) > before and time.monotonic() < end_s:
        time.sleep(0.2)
    assert threads(comfy) <= before


def settled(comfy: Client) -> int:
    """The number of threads once it has not changed for a while."""
    end_s, same, last = time.monotonic() + 90, 0, -1
    while same < 5 and time.monotonic() < end_s:
        now = threads(comfy)
        same, last = (same + 1 if now == last else 0), now
        time.sleep(0.3)
    return last


def test_memory_is_freed_between_two_nodes_and_the_picture_is_the_same(comfy: Client) -> None:
    plain = comfy.run(sampled(107))
    prompt = sampled(107, between=freeing(anything=["loader", 0]))
    prompt["sampler"]["inputs"]["model"] = ["between", 0]  # a MODEL through the socket
    prompt["after"] = freeing(anything=["decode", 0])
    prompt["save"]["inputs"]["images"] = ["after", 0]  # and an IMAGE
    outputs = comfy.run(prompt)
    one, other = plain["save"]["images"][0], outputs["save"]["images"][0]
    assert comfy.view(one).tobytes() == comfy.view(other).tobytes()
    text = text_of(outputs, "after")
    assert text[0].startswith("freed: ")
    assert any(line.startswith("unloaded: BaseModel: ") for line in text)
    kept = "the kept result of node loader (CheckpointLoaderSimple)"
    assert any(kept in line for line in text)
    assert text[-1] == "try: turn forget_outputs on, so that ComfyUI lets go of kept results too"


def test_results_are_forgotten_where_that_is_asked_for(comfy: Client) -> None:
    prompt = sampled(108, last=freeing(forget_outputs=True, anything=["decode", 0]))
    text = text_of(comfy.run(prompt), "last")
    assert "ComfyUI forgets the kept results when the prompt is over" in text
    identity = comfy.queue(prompt)
    comfy.wait(identity)
    assert comfy.cached(identity) == set()


def test_a_report_names_models_and_kept_results(comfy: Client) -> None:
    prompt = sampled(109, report=node(REPORT, after=["decode", 0]))
    prompt["data_text"] = node("PreviewAny", source=["report", 1])
    outputs = comfy.run(prompt)
    text = text_of(outputs, "report")
    assert text[0].startswith("RAM: ")
    assert any(line.startswith("  BaseModel: 103 MB, 103 MB on cpu") for line in text)
    assert any(
        "in 170 tensors: ComfyUI's model BaseModel; the kept result of node loader "
        "(CheckpointLoaderSimple)" in line
        for line in text
    )
    assert '"ram_bytes": ' in "\n".join(outputs["data_text"]["text"])


def test_the_machine_is_drawn(comfy: Client) -> None:
    picture = node(TOPOLOGY, measure=False, theme="light", width=800)
    outputs = comfy.run({"1": picture, "2": node("PreviewImage", images=["1", 0])})
    assert comfy.view(outputs["1"]["images"][0]).size[0] == 800
    assert comfy.view(outputs["2"]["images"][0]).getpixel((1, 1)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"width": 10**9}, "Value 1000000000 bigger than max of 2560 (width)"),
        ({"theme": "../../etc"}, "Value not in list"),
        ({"width": "a"}, "Failed to convert an input value to a INT value"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    comfy: Client, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        comfy.run({"1": drawing(**wrong)})
    assert said in str(refused.value)
