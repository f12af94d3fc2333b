"""The built-in models draw what they are asked for, judged by somebody who saw only real digits."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from holdfast.pipeline import Pipeline
from tests.needs import ALL
from tests.pipeline.pictures import NAMES


@pytest.fixture(scope="module")
def flux() -> Pipeline:
    return Pipeline.load("tiny-flux", device="cpu")


@pytest.mark.slow
def test_the_judge_knows_a_real_digit_from_another(judge: ModuleType) -> None:
    """A judge that says yes to everything would prove nothing."""
    blank = np.full((1, 128, 128, 3), 255, dtype=np.uint8)
    seven = Pipeline.load("tiny-flux", device="cpu")("a handwritten seven", seed=1).frames
    turned = np.rot90(seven, k=2, axes=(1, 2))
    assert judge.recognise(seven)[0] == 7
    assert judge.recognise(turned)[0] != 7
    assert judge.recognise(blank).shape == (1,)


@pytest.mark.slow
def test_at_least_nine_of_ten_pictures_of_tiny_flux_are_recognised(
    judge: ModuleType, flux: Pipeline
) -> None:
    right, seeds = 0, range(10 if ALL else 2)
    for digit, name in enumerate(NAMES):
        frames = [flux(f"a handwritten {name}", seed=seed).frames[0] for seed in seeds]
        right += int((judge.recognise(np.stack(frames)) == digit).sum())
    assert right >= 9 * len(seeds)


@pytest.mark.parametrize(
    ("prompt", "ink", "paper"),
    [
        ("a red handwritten seven on yellow paper", "R", "RG"),
        ("a white seven on a black board", "RGB", ""),
        ("a blue 7", "B", "RGB"),
    ],
)
def test_the_colours_are_those_of_the_prompt(
    flux: Pipeline, prompt: str, ink: str, paper: str
) -> None:
    frame = flux(prompt, seed=1).frames[0]
    corner = frame[:8, :8].reshape(-1, 3).mean(axis=0)
    distance = np.abs(frame - corner).sum(axis=2)
    stroke = frame[distance > np.quantile(distance, 0.95)].mean(axis=0)
    assert {c for c, v in zip("RGB", corner, strict=True) if v > 128} == set(paper)
    assert {c for c, v in zip("RGB", stroke, strict=True) if v > 128} == set(ink)


@pytest.mark.parametrize("prompt", ["", "七", "🙂 " * 500, "seven\x00\n\t<b>"])
def test_any_text_draws_something(flux: Pipeline, prompt: str) -> None:
    assert flux(prompt, steps=2, seed=1).frames.std() > 1
