"""Drawing on Holdfast's own torch device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.base.errors import Unsupported
from holdfast.cli.main import main
from holdfast.compute import engine
from holdfast.pipeline import Pipeline
from holdfast.pipeline.devices.device import decide_budget, open_device
from tests.needs import ALL
from tests.pipeline.pictures import NAMES, furthest

QUICK: dict[str, Any] = {"steps": 2, "height": 64, "width": 64, "seed": 1}


@pytest.fixture(scope="module")
def ours() -> Pipeline:
    return Pipeline.load("tiny-flux", device="holdfast")


@pytest.fixture(scope="module")
def theirs() -> Pipeline:
    return Pipeline.load("tiny-flux", device="cpu")


@pytest.mark.slow
def test_digits_are_recognised_and_those_of_the_cpu(
    judge: ModuleType, ours: Pipeline, theirs: Pipeline
) -> None:
    before, right = engine.fallbacks.copy(), 0
    for digit, name in enumerate(NAMES):
        for seed in range(2 if ALL else digit == 7):
            wish = {"prompt": f"a handwritten {name}", "seed": seed, "steps": 6}
            drawn = ours(**wish).frames
            assert furthest(drawn, theirs(**wish).frames) <= 2
            right += int(judge.recognise(drawn)[0] == digit)
    assert right >= (18 if ALL else 1)
    assert engine.fallbacks == before  # nothing was computed by torch


def test_every_network_and_what_it_computes_is_on_the_device(ours: Pipeline) -> None:
    assert ours.why == "holdfast: asked for"
    result = ours("a handwritten seven", **QUICK)
    assert result.cost.peak_bytes["holdfast"] > 10_000_000
    assert result.settings["precision"] == "fp32"


def test_stages_share_the_work_with_the_cpu(theirs: Pipeline) -> None:
    devices = {"text": "cpu", "denoise": "holdfast", "decode": "cpu"}
    mixed = Pipeline.load("tiny-flux", device=devices)
    wish = {"prompt": "a handwritten seven", **QUICK}
    assert mixed.why == "text on cpu, denoise on holdfast, decode on cpu"
    assert furthest(mixed(**wish).frames, theirs(**wish).frames) <= 2


@pytest.mark.parametrize("model", ["tiny-sdxl", "tiny-wan"])
@pytest.mark.slow
def test_the_other_families_draw_too(model: str) -> None:
    wish = {"prompt": "a handwritten three", "steps": 2, "seed": 1}
    drawn, wanted = (Pipeline.load(model, device=d)(**wish).frames for d in ("holdfast", "cpu"))
    assert furthest(drawn, wanted) <= 2


def test_bfloat16_draws_a_similar_picture(theirs: Pipeline) -> None:
    wish = {"prompt": "a handwritten seven", **QUICK}
    narrow = Pipeline.load("tiny-flux", device="holdfast", precision="bf16")(**wish)
    wanted = theirs(**wish).frames.astype(int)
    assert narrow.settings["precision"] == "bf16"
    assert np.abs(narrow.frames.astype(int) - wanted).mean() < 5


def test_the_command_tells_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "seven.png"
    wish = [f"--{name}={value}" for name, value in QUICK.items()]
    run = ["run", "tiny-flux", "--device", "holdfast", "--out", str(picture), *wish]
    assert main(run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "device   holdfast: asked for; fp32"
    assert lines[3].endswith(" on holdfast")
    assert main([*run, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["why"] == "holdfast: asked for"
    assert list(report["cost"]["peak_bytes"]) == ["holdfast"]


def test_ctrl_c_between_two_steps_stops_it(ours: Pipeline) -> None:
    def heard(event: Any) -> None:
        if (event.stage, event.done) == ("denoise", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours("a handwritten seven", progress=heard, **QUICK)
    assert ours("a handwritten seven", **QUICK).frames.std() > 1


# ---- what it refuses


def test_there_is_one() -> None:
    assert open_device("holdfast:0").name == "holdfast:0"
    with pytest.raises(Unsupported) as caught:
        open_device("holdfast:1")
    assert str(caught.value) == (
        "cannot use device 'holdfast:1': torch sees 1 of its kind, numbered from 0\n"
        "  expected: a device that torch can use here\n"
        "  try: --device auto, or `holdfast doctor` for what is missing"
    )


def test_nothing_is_streamed_to_it() -> None:
    device = open_device("holdfast")
    assert decide_budget(device, 10**10, 10**9) is None
    with pytest.raises(Unsupported) as caught:
        device.carrier()
    assert str(caught.value) == (
        "cannot stream weights to holdfast\n  expected: a device with memory of its own"
    )


def test_a_budget_below_the_weights_is_refused() -> None:
    with pytest.raises(Unsupported) as caught:
        Pipeline.load("tiny-flux", device="holdfast", budget="1MB")
    assert str(caught.value) == (
        "cannot run 'tiny-flux' under a budget of 1.0 MB: 20.5 MB of weights have to stay on "
        "holdfast\n"
        "  expected: a budget of at least 20.5 MB\n"
        "  try: a larger budget, or half precision if it is full now"
    )
    assert torch.get_device_module("holdfast").get_per_process_memory_fraction() == 1.0


@pytest.mark.slow
def test_a_budget_is_kept() -> None:
    """What is computed counts too; 128x128 is too much for it."""
    script = """
from holdfast.base.errors import OutOfMemory
from holdfast.pipeline import Pipeline
pipe = Pipeline.load("tiny-flux", device="holdfast", budget="24MB")
try:
    pipe("a handwritten seven", steps=1, seed=1)
except OutOfMemory as exc:
    print(exc)
"""
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    what, *rest = child.stdout.splitlines()
    assert what.startswith("ran out of memory on holdfast while running 'decode': cannot compute ")
    assert what.endswith(": no memory for the result; 24.0 MB of the limit of 24.0 MB are in use")
    assert rest == [
        "  expected: a picture and a model that fit together",
        "  try: a smaller --height and --width, --precision bf16, or another --device",
    ]
