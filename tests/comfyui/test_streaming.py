"""Stream Model on ComfyUI's own models: the same pictures, whoever had the model before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.comfyui import models
from tests.comfyui.client import Client, Failed, Refused

NODE = "HoldfastStreamModel"
# Less than half of the weights of each: 50, 5 and 9 MB in fp16, twice that as the CPU computes.
BUDGETS_GB = {"sd15": 0.03, "sd3": 0.004, "wan": 0.005}


@pytest.fixture(scope="module", autouse=True)
def tiny(comfy: Client) -> None:
    """The tiny models are where ComfyUI looks for them, and a LoRA for one of them."""
    models.install(models.make(), comfy.server.base)
    weights = load_file(models.MADE / "checkpoints" / "tiny-sd15.safetensors")
    generator = torch.Generator().manual_seed(3)
    lora = {}
    for name, weight in sorted(weights.items()):
        if name.endswith("to_q.weight"):
            path = name.removeprefix("model.").removesuffix(".weight")
            down = torch.randn(4, weight.shape[1], generator=generator)
            up = torch.randn(weight.shape[0], 4, generator=generator)
            lora |= {f"{path}.lora_A.weight": down, f"{path}.lora_B.weight": up * 0.2}
    folder = comfy.server.base / "models" / "loras"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(lora, folder / "tiny-lora.safetensors")


def streamed(name: str = "sd15", **inputs: object) -> models.Node:
    return models.node(NODE, **({"budget_gb": BUDGETS_GB[name], "pack": True} | inputs))


def pictures(comfy: Client, name: str, *chain: models.Node, **settings: int) -> list[bytes]:
    found = comfy.run(models.workflow(name, chain, **settings))
    return [comfy.view(image).tobytes() for image in found["save"]["images"]]


@pytest.mark.parametrize("name", BUDGETS_GB)
def test_pictures_are_identical_with_and_without(comfy: Client, name: str) -> None:
    plain = pictures(comfy, name, steps=4)
    assert len(set(plain[0])) > 10  # no empty picture
    size = comfy.server.log.stat().st_size
    assert pictures(comfy, name, streamed(name), steps=4) == plain
    with comfy.server.log.open() as log:
        log.seek(size)
        assert "Holdfast streams " in log.read()
    assert pictures(comfy, name, steps=4, seed=8) != plain
    assert pictures(comfy, name, streamed(name, budget_gb=0.0), steps=4) == plain


def test_a_lora_may_come_before_or_after(comfy: Client) -> None:
    lora = models.node("LoraLoaderModelOnly", lora_name="tiny-lora.safetensors", strength_model=0.7)
    wanted = pictures(comfy, "sd15", lora)
    assert wanted != pictures(comfy, "sd15")
    assert pictures(comfy, "sd15", lora, streamed()) == wanted
    assert pictures(comfy, "sd15", streamed(), lora) == wanted
    assert pictures(comfy, "sd15", streamed()) == pictures(comfy, "sd15")


def test_several_pictures_at_once_and_other_sizes(comfy: Client) -> None:
    for size in (64, 96, 64):
        wanted = pictures(comfy, "sd15", size=size, seed=size)
        assert pictures(comfy, "sd15", streamed(), size=size, seed=size) == wanted


@pytest.mark.parametrize("budget", [-1, 5000, "much"])
def test_a_budget_that_is_none_is_refused_before_the_run(comfy: Client, budget: object) -> None:
    with pytest.raises(Refused):
        comfy.run(models.workflow("sd15", [streamed(budget_gb=budget)]))


def test_a_budget_that_no_layer_fits_into_says_which_would_do(comfy: Client) -> None:
    with pytest.raises(Failed) as caught:
        comfy.run(models.workflow("sd15", [streamed(budget_gb=0.0001)]))
    said = str(caught.value)
    assert "cannot run UNetModel" in said
    assert "expected: " in said
    assert "try: " in said
    assert pictures(comfy, "sd15", streamed()) == pictures(comfy, "sd15")


def test_a_model_goes_from_one_patcher_to_another_in_every_order() -> None:
    """In a process of its own, where more can be seen than through the API."""
    paths = (models.COMFY / "site", models.COMFY / "app", models.ROOT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).parent / "patching.py"
    file = models.make() / "checkpoints" / "tiny-sd15.safetensors"
    done = subprocess.run(
        [sys.executable, str(script), str(file)],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 25
    assert [name for name, held in found.items() if not held] == []
