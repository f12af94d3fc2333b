"""Drawing on XLA, on one device and with the weights split over eight virtual ones."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from holdfast.base.errors import Unsupported
from holdfast.cli.main import main
from holdfast.pipeline import Pipeline
from holdfast.pipeline.devices.device import decide_budget, open_device
from holdfast.xla.cluster.device_holders import holder
from holdfast.xla.sharding.shards import bytes_on
from tests.needs import ALL
from tests.pipeline import random_models
from tests.pipeline.pictures import NAMES, furthest

QUICK: dict[str, Any] = {"steps": 2, "height": 64, "width": 64, "seed": 1}

pytestmark = pytest.mark.slow  # compiling takes seconds


@pytest.fixture(scope="module")
def theirs() -> Pipeline:
    return Pipeline.load("tiny-flux", device="cpu")


@pytest.fixture(scope="module")
def eight() -> Pipeline:
    return Pipeline.load("tiny-flux", device="xla")


@pytest.mark.parametrize("device", ["xla:0", "xla"])
def test_digits_are_recognised_and_those_of_the_cpu(
    device: str, judge: ModuleType, eight: Pipeline, theirs: Pipeline
) -> None:
    ours = eight if device == "xla" else Pipeline.load("tiny-flux", device=device)
    right = 0
    for digit, name in enumerate(NAMES):
        for seed in range(2 if ALL else digit % 3 == 1):
            wish = {"prompt": f"a handwritten {name}", "seed": seed, "steps": 6}
            drawn = ours(**wish).frames
            assert furthest(drawn, theirs(**wish).frames) <= 2
            right += int(judge.recognise(drawn)[0] == digit)
    assert right >= (18 if ALL else 2)


def test_weights_are_split_over_all_devices_and_leave_the_host(eight: Pipeline) -> None:
    transformer: Any = eight.denoise.network.placed
    assert len(transformer.mesh.devices) == 8
    device = transformer.mesh.devices.flat[0]
    assert bytes_on(device, transformer.weights) == transformer.report.device_bytes
    report = transformer.report
    assert report.device_bytes < report.total_bytes / 2  # a tiny model: small weights stay whole
    assert all(weight.is_meta for weight in transformer.module.parameters())


@pytest.mark.parametrize("model", ["tiny-sdxl", "tiny-wan"])
def test_the_other_families_draw_too(model: str) -> None:
    wish = {"prompt": "a handwritten three", "steps": 2, "seed": 1}
    drawn, wanted = (Pipeline.load(model, device=d)(**wish).frames for d in ("xla:0", "cpu"))
    assert furthest(drawn, wanted) <= 2


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (random_models.wan, {"two": True}),
        (random_models.wan, {"moment_per_token": True}),
        (random_models.flux_without_guidance, {}),
        (random_models.sdxl, {}),
        (random_models.sdxl, {"adds_noise": True}),  # its steps are not compiled
    ],
)
def test_what_models_differ_in_is_the_same_as_on_the_cpu(
    make: Callable[..., Path], options: dict[str, bool], tmp_path: Path
) -> None:
    folder = str(make(tmp_path / "model", **options))
    wish = {"prompt": "a handwritten three", "negative": "a six", "steps": 3, "seed": 1}
    pipes = [Pipeline.load(folder, device=device) for device in ("xla:0", "cpu")]
    wish |= {"guidance": 3.0, "height": 32, "width": 32}
    wish |= {"num_frames": 5} if make is random_models.wan else {}
    drawn, wanted = (pipe(**wish).frames for pipe in pipes)
    assert furthest(drawn, wanted) <= 2


def test_stages_share_the_work_with_the_cpu(theirs: Pipeline) -> None:
    mixed = Pipeline.load("tiny-flux", device={"text": "cpu", "denoise": "xla:0", "decode": "cpu"})
    wish = {"prompt": "a handwritten seven", **QUICK}
    assert mixed.why == "text on cpu, denoise on xla:0, decode on cpu"
    assert furthest(mixed(**wish).frames, theirs(**wish).frames) <= 2


def test_a_stage_begins_by_saying_that_it_may_compile(eight: Pipeline) -> None:
    told: list[tuple[str, int, str | None]] = []
    eight(
        "a handwritten seven",
        progress=lambda event: told.append((event.stage, event.done, event.label)),
        **QUICK,
    )
    assert [one for one in told if one[2]] == [
        (stage, 0, "compiling, if new") for stage in ("text", "denoise", "decode")
    ]


def test_ctrl_c_between_two_steps_stops_it(eight: Pipeline) -> None:
    def heard(event: Any) -> None:
        if (event.stage, event.done) == ("denoise", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eight("a handwritten seven", progress=heard, **QUICK)
    assert eight("a handwritten seven", **QUICK).frames.std() > 1


def test_the_command_tells_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "seven.png"
    wish = [f"--{name}={value}" for name, value in QUICK.items()]
    run = ["run", "tiny-flux", "--device", "xla:0", "--out", str(picture), "--json", *wish]
    assert main(run) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["why"] == "xla:0: asked for"
    assert picture.is_file()


def test_there_are_eight() -> None:
    with pytest.raises(Unsupported) as caught:
        open_device("xla:8")
    assert str(caught.value) == (
        "cannot use device 'xla:8': jax sees 8 of its kind, numbered from 0\n"
        "  expected: a device that torch can use here\n"
        "  try: --device auto, or `holdfast doctor` for what is missing"
    )


def test_a_device_that_another_process_has_names_that_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken() -> Any:
        pid = os.getpid()
        raise RuntimeError(f"The TPU is already in use by process with pid {pid}.\nmore")

    monkeypatch.setattr("jax.devices", taken)
    with pytest.raises(Unsupported) as caught:
        open_device("xla")
    assert str(caught.value) == (
        f"cannot use device 'xla': cannot start the TPU while starting XLA: "
        f"{holder(os.getpid())} uses it\n"
        "  expected: a device that torch can use here\n"
        "  try: --device auto, or `holdfast doctor` for what is missing"
    )


@pytest.mark.parametrize("model", ["tiny-flux", "tiny-sdxl", "tiny-wan"])
def test_what_is_unloaded_leaves_no_array_on_a_device(model: str) -> None:
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    pipe = Pipeline.load(model, device="xla")
    pipe("a handwritten three", steps=2, seed=1)
    made = [array for array in jax.live_arrays() if id(array) not in before]
    assert sum(array.nbytes for array in made) > 10**7
    del made
    pipe.unload()
    assert [array.shape for array in jax.live_arrays() if id(array) not in before] == []


def test_nothing_is_streamed_to_it_and_no_budget_is_kept() -> None:
    device = open_device("xla")
    assert decide_budget(device, 10**10, 10**9) is None
    with pytest.raises(Unsupported) as caught:
        device.limit(10**9)
    assert str(caught.value) == (
        "cannot keep a run on XLA under 1.0 GB: weights stay on the devices\n"
        "  expected: no budget\n"
        "  try: more devices, or XLA_PYTHON_CLIENT_MEM_FRACTION for a share of a GPU"
    )
