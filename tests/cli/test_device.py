from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.compute.engine import ENGINES
from holdfast.compute.torch_device.dispatch import coverage
from holdfast.compute.torch_device.dispatch.coverage import Row
from holdfast.compute.torch_device.shim import build as shim
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

ROWS = [
    Row("add.Tensor", "functional", "native", "add.Tensor"),
    Row("add_.Tensor", "in place", "native", "add.Tensor"),
    Row("addcmul_", "in place", "decomposition", "addcmul"),
    Row("angry", "", "fallback", None),
    Row("view", "view", "native", None),
]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with five overloads."""
    monkeypatch.setattr(coverage, "coverage", lambda engine: ROWS)


def ops(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["device", "ops", *arguments]) == 0
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["device", "ops", *arguments]) == 2
    return capsys.readouterr().err


def test_without_an_action_it_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device"]) == 0
    out = capsys.readouterr().out
    assert "  ops         how each overload of torch is computed" in out
    assert "  holdfast device ops --fallbacks             only those that fall back\n" in out


@pytest.mark.opencl
@needs(_no_opencl())
@pytest.mark.slow
@pytest.mark.parametrize(("mapping", "shown"), [("auto", None), ("gpu", "GPUs")])
def test_without_an_action_it_lists_engines_and_opencl_devices(
    mapping: str, shown: str | None
) -> None:
    out = told(["device"], POCL_DEVICES="pthread basic", HOLDFAST_OPENCL_MAPPING=mapping)
    lines = out.splitlines()
    assert lines[:5] == [
        "engines",
        "  numpy   NumPy, on any CPU                       chosen",
        "  opencl  OpenCL, on GPUs of any vendor and CPUs",
        "  torch   torch, on CUDA devices",
        "",
    ]
    assert lines[5] == "OpenCL devices"
    devices = lines[6 : lines.index("", 6)]
    assert [line.split()[0] for line in devices[:2]] == ["opencl:0", "opencl:1"]
    for line in devices:
        assert re.search(
            r" \([^)]+\) +[\d.]+ [KMGT]B +\d+ compute units? +kernels for [CG]PUs$", line
        )
        assert shown is None or line.endswith(shown)


def test_without_opencl_the_reason_is_shown(tmp_path: Path) -> None:
    out = told(["device"], OCL_ICD_VENDORS=str(tmp_path))
    assert (
        "OpenCL devices: none\n"
        "  there is no OpenCL platform\n"
        "  expected: an OpenCL 1.2 platform with a device\n"
        "  try: install the GPU vendor's OpenCL driver, or PoCL: apt install pocl-opencl-icd\n"
    ) in out


def told(arguments: list[str], **variables: str) -> str:
    """What the command prints in a process of its own, where OpenCL has not started."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.usefixtures("few")
def test_every_overload_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ops(capsys) == (
        "engine numpy: 5 overloads: 3 native, 1 decomposition, 1 fallback\n"
        "\n"
        "overload     form        way            op of the table\n"
        "add.Tensor   functional  native         add.Tensor\n"
        "add_.Tensor  in place    native         add.Tensor\n"
        "addcmul_     in place    decomposition  addcmul\n"
        "angry        –           fallback       –\n"
        "view         view        native         –\n"
    )


@pytest.mark.usefixtures("few")
def test_fallbacks_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert ops(capsys, "--fallbacks") == (
        "engine numpy: 5 overloads: 3 native, 1 decomposition, 1 fallback\n"
        "\n"
        "overload  form  way       op of the table\n"
        "angry     –     fallback  –\n"
    )
    assert ops(capsys, "--fallbacks", "--only", "view") == (
        "engine numpy: 1 overload: 1 native, 0 decomposition, 0 fallback\nnone of them falls back\n"
    )


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("add", ["add.Tensor", "add_.Tensor"]),
        ("add*", ["add.Tensor", "add_.Tensor", "addcmul_"]),
        ("add.Tensor", ["add.Tensor"]),
        ("*_", ["addcmul_"]),
    ],
)
def test_a_pattern_is_for_the_whole_name_or_the_op_in_it(
    pattern: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(ops(capsys, "--json", "--only", pattern))
    assert [row["name"] for row in found["overloads"]] == names


@pytest.mark.usefixtures("few")
def test_a_pattern_that_nothing_fits_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "--only", "addcmull") == (
        "holdfast: error: no overload of the device fits 'addcmull'\n"
        "  expected: a name such as add or add.Tensor, or a pattern such as 'conv*'\n"
        "  try: addcmul\n"
    )
    assert error(capsys, "--only", "") == (
        "holdfast: error: no overload of the device fits ''\n"
        "  expected: a name such as add or add.Tensor, or a pattern such as 'conv*'\n"
        "  try: holdfast device ops\n"
    )


def test_an_engine_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "--engine", "nump") == (
        "holdfast: error: unknown engine 'nump'\n"
        f"  expected: one of {', '.join(ENGINES)}\n"
        "  try: numpy\n"
    )


def test_json_tells_of_what_is_really_there(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(ops(capsys, "--json"))
    rows = found["overloads"]
    assert found["engine"] == "numpy"
    assert found["counts"] == coverage.counts([Row(**row) for row in rows])
    assert {"name": "add_.Tensor", "form": "in place", "way": "native", "op": "add.Tensor"} in rows
    assert found["counts"]["native"] > 1000


def test_the_opencl_engine_has_rows_too(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(ops(capsys, "--engine", "opencl", "--json"))
    rows = {row["name"]: row["way"] for row in found["overloads"]}
    assert found["engine"] == "opencl"
    assert (rows["add.Tensor"], rows["mm"]) == ("native", "native")
    assert rows["_linalg_eigh"] != "native"


# ---- build


def test_building_tells_what_it_does_and_where_the_shim_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def build(progress: Any) -> Path:
        progress("compiling: about a minute")
        return tmp_path / "shim.so"

    monkeypatch.setattr(shim, "build", build)
    assert main(["device", "build"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        f"shim  {tmp_path / 'shim.so'}\n",
        "compiling: about a minute\n",
    )
