"""Will It Fit in a real ComfyUI: for tiny models of three kinds, before ComfyUI samples them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comfyui import models
from tests.comfyui.client import Client, Failed, Refused

NODE = "HoldfastWillItFit"
KINDS = {"sd15": "SD15", "sd3": "SD3", "wan": "WAN21_T2V"}


@pytest.fixture(scope="module", autouse=True)
def tiny(comfy: Client) -> None:
    """The tiny models are where ComfyUI looks for them."""
    models.install(models.make(), comfy.server.base)


def asked(**inputs: Any) -> models.Node:
    given = {
        "latent_image": ["latent", 0],
        "steps": 4,
        "cfg": 2.0,
        "budget_gb": 8.0,
        "positive": ["data", 1],
    }
    return models.node(NODE, **(given | inputs))


def said(comfy: Client, name: str, **inputs: Any) -> list[str]:
    """The lines of the report."""
    prompt = models.workflow(name, [asked(**inputs)], save="latent")
    return comfy.run(prompt)["chain0"]["text"][0].splitlines()


@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_followed_timed_and_sampled_as_it_would_be_without(
    comfy: Client, name: str
) -> None:
    plain = comfy.run(models.workflow(name, prefix="plain"))
    node = asked(vae=["vae", 0])
    looked = comfy.run(models.workflow(name, [node], prefix="looked"))
    lines = looked["chain0"]["text"][0].splitlines()
    assert lines[0].startswith(f"YES: {KINDS[name]} on cpu")
    assert lines[0].endswith(" fits whole into 8.00 GiB")
    assert "(by following it; ComfyUI's estimate is " in lines[1]
    assert lines[2].endswith(
        "for 4 steps (both directions of guidance at once; its layers were timed on this device)"
    )
    assert lines[3].startswith("decoding: ")
    assert lines[-1] == "best: as it is; Stream Model is not needed"
    for one, other in zip(plain["save"]["images"], looked["save"]["images"], strict=True):
        assert comfy.view(one).tobytes() == comfy.view(other).tobytes()


def test_the_outputs_can_be_used_by_other_nodes(comfy: Client) -> None:
    prompt = models.workflow("sd15", [asked()], save="latent")
    for number, name in enumerate(("fits", "seconds", "stream", "budget_gb", "report"), start=1):
        prompt[name] = models.node("PreviewAny", source=["chain0", number])
    shown = comfy.run(prompt)
    value = {name: shown[name]["text"][0] for name in ("fits", "seconds", "stream", "budget_gb")}
    assert (value["fits"], value["stream"], value["budget_gb"]) == ("True", "False", "0.0")
    assert 0.0 < float(value["seconds"]) < 60.0
    assert shown["report"]["text"] == shown["chain0"]["text"]


def test_too_little_memory_is_an_answer_and_no_error(comfy: Client) -> None:
    lines = said(comfy, "sd15", budget_gb=0.01)
    assert lines[0].startswith("NO: SD15 on cpu")
    assert lines[0].endswith(" does not fit into 10.2 MiB")
    assert lines[-1].startswith("best: a smaller latent, fewer at once or ")


def test_without_conditioning_the_usual_one_is_taken(comfy: Client) -> None:
    prompt = models.workflow("sd3", [asked()], save="latent")
    del prompt["chain0"]["inputs"]["positive"]
    text = comfy.run(prompt)["chain0"]["text"][0]
    assert text.startswith("YES: SD3 on cpu")
    assert text.endswith("assumed: conditioning of 77 tokens: none is connected")


def test_guidance_of_one_is_one_direction(comfy: Client) -> None:
    assert "(guidance 1: one direction; " in said(comfy, "wan", cfg=1.0)[2]


def test_with_a_budget_the_answer_and_what_follows_are_kept(comfy: Client) -> None:
    prompt = models.workflow("sd3", [asked(steps=7)], save="latent")
    comfy.run(prompt)
    again = comfy.queue(prompt)
    comfy.wait(again)
    assert {"chain0", "sampler"} <= comfy.cached(again)


def test_without_a_budget_it_is_what_comfyui_would_have(comfy: Client) -> None:
    assert said(comfy, "wan", budget_gb=0.0)[0].startswith("YES: WAN21_T2V on cpu")


def test_another_models_latent_is_refused_in_three_parts(comfy: Client) -> None:
    prompt = models.workflow("sd15", save="latent")
    prompt["other"] = models.node("CheckpointLoaderSimple", ckpt_name="tiny-sd3.safetensors")
    prompt["look"] = asked(model=["other", 0], latent_image=["sampler", 0])
    with pytest.raises(Failed) as caught:
        comfy.run(prompt)
    assert caught.value.node == "look"
    assert str(caught.value).endswith(
        "a latent of 4 channels and 2 dimensions is none of SD3\n"
        "  expected: 16 channels and 2 dimensions\n"
        "  try: an empty latent, or one that was encoded with this model's VAE"
    )


def test_conditioning_of_another_model_gives_a_bound(comfy: Client) -> None:
    prompt = models.workflow("sd3", save="latent")
    prompt["other"] = models.node("LoadTrainingDataset", folder_name="tiny-sd15")
    prompt["look"] = asked(model=["loader", 0], positive=["other", 1])
    text = comfy.run(prompt)["look"]["text"][0]
    assert "time: not predicted: cannot tell what SD3 would be called with: " in text
    assert "a bound and no prediction" in text


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"cfg": -1.0}, {"budget_gb": -2.0}])
def test_values_out_of_range_never_run(comfy: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        comfy.run(models.workflow("sd3", [asked(**wrong)]))
