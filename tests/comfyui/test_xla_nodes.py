"""The TPU nodes in a real ComfyUI, with the models that come along, on XLA."""

from __future__ import annotations

import io
import shutil
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from holdfast.pipeline.model.sources import BUILT_IN
from tests.comfyui.client import Client, Failed, Interrupted, Refused
from tests.pipeline.conftest import judge

__all__ = ["judge"]  # a fixture

SEVEN = "a handwritten seven"
FLUX: dict[str, Any] = {"height": 0, "width": 0, "steps": 6, "guidance": -1.0}
WAN: dict[str, Any] = FLUX | {"num_frames": 5, "steps": 2}


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def saved(source: str) -> dict[str, Any]:
    return node("SaveImage", images=[source, 0], filename_prefix="tpu")


def pipeline(seed: int, **more: Any) -> dict[str, Any]:
    whole = node("FluxTPUPipeline", **{"prompt": SEVEN, **FLUX, "seed": seed, **more})
    return {"1": whole, "2": saved("1")}


def stages(seed: int, **more: Any) -> dict[str, Any]:
    """Text encoder, sampler and decoder, which the others are put between."""
    return {
        "1": node("FluxTPUTextEncoder", prompt=SEVEN),
        "2": node("FluxTPUSampler", **{"positive": ["1", 0], **FLUX, "seed": seed, **more}),
        "3": node("FluxTPUVAEDecoder", samples=["2", 0]),
        "4": saved("3"),
    }


def pictures(comfy: Client, prompt: dict[str, Any]) -> np.ndarray:
    """All that the workflow saves, [picture, height, width, colour]."""
    shown = [one for its in comfy.run(prompt).values() for one in its.get("images", ())]
    return np.stack([np.asarray(comfy.view(one).convert("RGB")) for one in shown])


def loads(events: list[tuple[str, Any]]) -> list[str]:
    said = [data["text"] for kind, data in events if kind == "text"]
    return [text for text in said if text.startswith("load: ")]


def test_the_pipeline_draws_a_seven_and_shows_how_far_it_is(
    comfy: Client, judge: ModuleType
) -> None:
    comfy.free()
    with comfy.events() as events:
        number = comfy.queue(pipeline(1))
        told = events.until_over(number)
    (image,) = comfy.wait(number)["2"]["images"]
    assert judge.recognise(np.asarray(comfy.view(image).convert("RGB"))[None])[0] == 7
    bars = [(one["value"], one["max"]) for kind, one in told if kind == "progress"]
    assert [(step, 6) for step in range(1, 7)] == [one for one in bars if one[1] == 6]
    said = {one["text"] for kind, one in told if kind == "text"}
    assert {f"{stage}: compiling, if new" for stage in ("text", "denoise", "decode")} <= said
    assert loads(told)


def test_the_picture_is_seen_while_it_is_drawn(comfy: Client) -> None:
    with comfy.events() as events:
        told = events.until_over(comfy.queue(pipeline(11, steps=100)))
    previews = [data for kind, data in told if kind == "preview"]
    assert previews
    with Image.open(io.BytesIO(previews[-1])) as picture:
        assert picture.size == (512, 512)  # ComfyUI fits them into its setting


def test_three_stages_are_the_pipeline_to_the_bit(comfy: Client) -> None:
    assert np.array_equal(pictures(comfy, stages(2)), pictures(comfy, pipeline(2)))


def test_a_video_too(comfy: Client) -> None:
    text = node("WanTPUTextEncoder", prompt=SEVEN)
    away = node("WanTPUTextEncoder", prompt="a six")
    drawn = node("WanTPUSampler", positive=["1", 0], negative=["5", 0], seed=1, **WAN)
    decoded = node("WanTPUVAEDecoder", samples=["2", 0], fps=8)
    three = pictures(comfy, {"1": text, "5": away, "2": drawn, "3": decoded, "4": saved("3")})
    whole = node("WanTPUPipeline", prompt=SEVEN, negative_prompt="a six", seed=1, **WAN)
    assert three.shape == (5, 64, 64, 3)
    assert np.array_equal(three, pictures(comfy, {"1": whole, "2": saved("1")}))


def test_comfyuis_own_nodes_for_conditioning_and_latents_fit_between(comfy: Client) -> None:
    plain = pictures(comfy, stages(3, guidance=2.0))
    prompt = stages(3)
    prompt["2"]["inputs"]["positive"] = ["5", 0]
    prompt["5"] = node("FluxGuidance", conditioning=["1", 0], guidance=2.0)
    assert np.array_equal(pictures(comfy, prompt), plain)
    prompt["2"]["inputs"]["positive"] = ["6", 0]
    prompt["6"] = node("ConditioningConcat", conditioning_to=["5", 0], conditioning_from=["1", 0])
    assert pictures(comfy, prompt).shape == plain.shape
    prompt["2"]["inputs"]["positive"] = ["5", 0]
    prompt["3"]["inputs"]["samples"] = ["7", 0]
    prompt["7"] = node("RepeatLatentBatch", samples=["2", 0], amount=2)
    two = pictures(comfy, prompt).astype(int)
    assert two.shape == (2, *plain.shape[1:])
    assert np.abs(two - plain).max() <= 1
    prompt["7"] = node("LatentFlip", samples=["2", 0], flip_method="y-axis: horizontally")
    assert np.abs(pictures(comfy, prompt)[0, :, ::-1].astype(int) - plain[0]).mean() < 25
    size = {"width": 192, "height": 96, "upscale_method": "bilinear", "crop": "disabled"}
    prompt["7"] = node("LatentUpscale", samples=["2", 0], **size)
    assert pictures(comfy, prompt).shape == (1, 96, 192, 3)


def test_the_same_seed_is_not_drawn_again_and_another_is(comfy: Client) -> None:
    first, again = comfy.queue(pipeline(4)), comfy.queue(pipeline(4))
    other = comfy.queue(pipeline(5))
    for number in (first, again, other):
        comfy.wait(number)
    assert comfy.cached(again) == {"1", "2"}
    assert comfy.cached(other) == set()


def test_a_model_whose_file_has_changed_is_read_again(comfy: Client) -> None:
    folder = comfy.server.models / "diffusers" / "mine"
    shutil.copytree(BUILT_IN / "tiny-flux", folder)
    try:
        prompt = pipeline(6, model_id="mine")
        first = comfy.queue(prompt)
        comfy.wait(first)
        config = folder / "holdfast.json"
        config.write_text(config.read_text().replace('"steps": 20', '"steps": 9'))
        with comfy.events() as events:
            second = comfy.queue(prompt)
            told = events.until_over(second)
        comfy.wait(second)
        assert "1" not in comfy.cached(second)
        assert loads(told)
    finally:
        shutil.rmtree(folder)


def test_a_run_is_stopped_in_the_middle_and_the_next_one_draws(comfy: Client) -> None:
    wanted = pictures(comfy, pipeline(7))
    with comfy.events() as events:
        number = comfy.queue(stages(7, steps=1000))
        events.until(
            lambda kind, one: kind == "progress" and one["max"] == 1000 and one["value"] > 4
        )
        comfy.interrupt()
        told = events.until_over(number)
    assert told[-1][0] == "execution_interrupted"
    with pytest.raises(Interrupted) as caught:
        comfy.wait(number)
    assert caught.value.node == "2"
    steps = [one["value"] for kind, one in told if kind == "progress"]
    assert not steps or max(steps) < 900
    assert np.array_equal(pictures(comfy, stages(7)), wanted)


def test_the_model_goes_when_comfyui_frees_its_caches(comfy: Client) -> None:
    def told(seed: int) -> list[str]:
        with comfy.events() as events:
            return loads(events.until_over(comfy.queue(pipeline(seed))))

    told(8)
    assert not told(9)  # it is there already
    comfy.free()
    assert told(10)


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "~/x", "models/../../x"])
def test_a_path_out_of_comfyuis_folders_is_refused_before_anything_runs(
    name: str, comfy: Client
) -> None:
    with pytest.raises(Refused) as caught:
        comfy.queue(pipeline(1, model_id=name))
    assert caught.value.errors() == {
        "1": [
            f"Custom validation failed for node (model_id - cannot load model {name!r}: it is "
            "outside of ComfyUI's models folders\n"
            "  expected: a built-in model, a folder or file in ComfyUI's models folder, or a hub "
            "id\n"
            "  try: a link to it in models/diffusers, or extra_model_paths.yaml)"
        ]
    }


def test_an_error_is_shown_in_its_node_in_three_parts(comfy: Client) -> None:
    with pytest.raises(Failed) as caught:
        comfy.run(pipeline(1, height=104))
    assert caught.value.node == "1"
    assert caught.value.document["exception_message"].strip() == (
        "cannot draw height=104\n  expected: a multiple of 16 from 16 to 8192\n  try: height 96"
    )
    foreign = stages(1)
    foreign["3"]["inputs"]["samples"] = ["5", 0]
    foreign["5"] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    with pytest.raises(Failed, match="they do not say which model drew them"):
        comfy.run(foreign)
