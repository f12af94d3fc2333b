"""The same weights, prompt and seed give, to the last bit, what diffusers' own pipelines draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.pipeline import Pipeline
from tests.pipeline import random_models

PROMPT = "a handwritten seven"

CASES: dict[str, tuple[Callable[[Path], Path] | str, dict[str, Any], dict[str, Any]]] = {
    # name: (model, our settings, diffusers' words for them where they differ)
    "flux": ("tiny-flux", {"guidance": 2.5}, {"max_sequence_length": 32}),
    "flux, other size": (
        "tiny-flux",
        {"guidance": 2.5, "height": 96, "width": 144},
        {"max_sequence_length": 32},
    ),
    "flux without guidance": (
        random_models.flux_without_guidance,
        {"guidance": 0.0},
        {"max_sequence_length": 32},
    ),
    "flux with a negative prompt": (
        random_models.flux_without_guidance,
        {"guidance": 3.0, "negative": "a handwritten one"},
        {"max_sequence_length": 32, "true_cfg_scale": 3.0},
    ),
    "sdxl": (random_models.sdxl, {"guidance": 5.0, "height": 32, "width": 48}, {}),
    "sdxl without guidance": (
        random_models.sdxl,
        {"guidance": 1.0, "height": 32, "width": 32},
        {},
    ),
    "sdxl with a negative prompt": (
        random_models.sdxl,
        {"guidance": 5.0, "negative": "blue", "height": 32, "width": 32},
        {},
    ),
    "sdxl with a scheduler that adds noise": (
        lambda folder: random_models.sdxl(folder, adds_noise=True),
        {"guidance": 5.0, "height": 32, "width": 32},
        {},
    ),
    "wan 2.1": (
        random_models.wan,
        {"guidance": 4.0, "height": 32, "width": 48, "num_frames": 5},
        {"max_sequence_length": 32},
    ),
    "wan 2.1 without guidance": (
        random_models.wan,
        {"guidance": 1.0, "height": 32, "width": 32, "num_frames": 5},
        {"max_sequence_length": 32},
    ),
    "wan 2.2 with two transformers": (
        lambda folder: random_models.wan(folder, two=True),
        {"guidance": 4.0, "height": 32, "width": 32, "num_frames": 5},
        {"max_sequence_length": 32},
    ),
    "wan 2.2 with a moment for each token": (
        lambda folder: random_models.wan(folder, moment_per_token=True),
        {"guidance": 4.0, "height": 32, "width": 32, "num_frames": 5},
        {"max_sequence_length": 32},
    ),
}


QUICK = ("flux without guidance", "sdxl with a negative prompt", "wan 2.1")  # one of each family


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_a_picture_equals_that_of_diffusers(case: str, tmp_path: Path) -> None:
    make, settings, words = CASES[case]
    model = make if isinstance(make, str) else str(make(tmp_path / "model"))
    pipe = Pipeline.load(model, device="cpu", precision="fp32")
    ours = pipe(PROMPT, steps=4, seed=3, **settings).frames
    theirs = _diffusers(pipe.source.folder, settings, words)
    assert ours.std() > 0  # a picture of one colour would prove nothing
    np.testing.assert_array_equal(ours, theirs)


def _diffusers(folder: Path, settings: dict[str, Any], words: dict[str, Any]) -> np.ndarray:
    from diffusers import DiffusionPipeline  # takes seconds to import

    pipe = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    given = dict(settings)
    given["guidance_scale"] = given.pop("guidance")
    if "negative" in given:
        given["negative_prompt"] = given.pop("negative")
    given |= {"height": settings.get("height", 128), "width": settings.get("width", 128)}
    drawn = pipe(
        PROMPT,
        num_inference_steps=4,
        generator=torch.Generator().manual_seed(3),
        output_type="pil",
        **given,
        **words,
    )
    images = drawn.frames[0] if hasattr(drawn, "frames") else drawn.images
    return np.stack([np.asarray(image) for image in images])


@pytest.fixture(autouse=True)
def quiet_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
