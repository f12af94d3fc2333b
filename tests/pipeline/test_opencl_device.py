"""Drawing on OpenCL: torch's networks on Holdfast's device, with the OpenCL engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast.torch
from holdfast.base.errors import Unsupported
from holdfast.cli.main import main
from holdfast.compute import engine
from holdfast.compute.engines.opencl.engine import engine_at
from holdfast.memory import memory_manager
from holdfast.memory.resources import opencl_devices
from holdfast.pipeline import Pipeline
from holdfast.pipeline.devices.device import open_device
from tests.needs import ALL, needs
from tests.pipeline.pictures import NAMES, furthest
from tests.topology.test_probes import _no_opencl

QUICK: dict[str, Any] = {"steps": 2, "height": 64, "width": 64, "seed": 1}
# Ops that the host computes for the networks here; it may only become shorter.
HOSTED: set[str] = set()

pytestmark = [pytest.mark.opencl, needs(_no_opencl())]


@pytest.fixture(autouse=True)
def shared_kernels(kept_kernels: None) -> None:
    """For every test here."""


@pytest.fixture(autouse=True, scope="module")
def engine_as_before() -> Iterator[None]:
    before = holdfast.torch.engine()
    yield
    holdfast.torch.use(before)


@pytest.fixture(scope="module")
def theirs() -> Pipeline:
    return Pipeline.load("tiny-flux", device="cpu")


@pytest.fixture(scope="module")
def ours() -> Pipeline:
    return Pipeline.load("tiny-flux", device="opencl")


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
    assert {op for _, op in engine.fallbacks - before} <= HOSTED


def test_every_network_and_what_it_computes_is_on_the_device(ours: Pipeline) -> None:
    assert ours.why == "opencl: asked for"
    result = ours("a handwritten seven", **QUICK)
    assert result.cost.peak_bytes["opencl"] > 10_000_000
    assert memory_manager.stats("opencl:0").allocated_bytes > 10_000_000


def test_stages_share_the_work_with_the_cpu(theirs: Pipeline) -> None:
    devices = {"text": "cpu", "denoise": "opencl:0", "decode": "cpu"}
    mixed = Pipeline.load("tiny-flux", device=devices)
    wish = {"prompt": "a handwritten seven", **QUICK}
    assert mixed.why == "text on cpu, denoise on opencl:0, decode on cpu"
    assert furthest(mixed(**wish).frames, theirs(**wish).frames) <= 2


@pytest.mark.slow
def test_a_device_smaller_than_the_model_draws_the_same(ours: Pipeline, theirs: Pipeline) -> None:
    memories: Any = engine_at(0).memories
    pool = memories.pool
    before = pool.pool.core.limit
    memories.make_room(None)
    pool.empty_cache()
    count = memories.out_count
    pool.set_limit("16MB")  # the weights have 20
    try:
        drawn = ours("a handwritten seven", **QUICK).frames
    finally:
        pool.set_limit(before)
    assert memories.out_count > count
    assert furthest(drawn, theirs("a handwritten seven", **QUICK).frames) <= 2


def test_the_command_tells_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wish = [f"--{name}={value}" for name, value in QUICK.items()]
    run = ["run", "tiny-flux", "--device", "opencl", "--out", str(tmp_path / "seven.png"), *wish]
    assert main([*run, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["why"] == "opencl: asked for"
    assert list(report["cost"]["peak_bytes"]) == ["opencl"]


@pytest.mark.slow
def test_the_second_device_can_be_named(tmp_path: Path, theirs: Pipeline) -> None:
    wish = [f"--{name}={value}" for name, value in QUICK.items()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast", "run", "tiny-flux", "--device", "opencl:1"),
            *("--out", str(tmp_path / "seven.png"), "--json", *wish),
        ],
        env=os.environ | {"POCL_DEVICES": "pthread basic"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(json.loads(done.stdout)["cost"]["peak_bytes"]) == ["opencl:1"]


# ---- what it refuses


def test_a_number_that_is_not_there_is_refused() -> None:
    count = len(opencl_devices.devices())
    with pytest.raises(Unsupported) as caught:
        open_device("opencl:99")
    assert str(caught.value) == (
        f"cannot use device 'opencl:99': OpenCL has {count} here, numbered from 0\n"
        "  expected: a device that torch can use here\n"
        "  try: --device auto, or `holdfast doctor` for what is missing"
    )


@pytest.mark.slow
def test_without_a_platform_it_says_so(tmp_path: Path) -> None:
    script = (
        "from holdfast.base.errors import Unsupported\n"
        "from holdfast.pipeline.devices.device import open_device\n"
        "try: open_device('opencl')\n"
        "except Unsupported as exc: print(exc)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"OCL_ICD_VENDORS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "cannot use device 'opencl': there is no OpenCL platform\n"
        "  expected: a device that torch can use here\n"
        "  try: --device auto, or `holdfast doctor` for what is missing\n",
    )
