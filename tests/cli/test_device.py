from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import device
from holdfast.cli.main import main
from holdfast.compute.torch_device import coverage
from holdfast.compute.torch_device.coverage import Row

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
    monkeypatch.setattr(device, "coverage", lambda engine: ROWS)


def ops(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["device", "ops", *arguments]) == 0
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["device", "ops", *arguments]) == 2
    return capsys.readouterr().err


def test_without_an_action_it_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device"]) == 0
    out = capsys.readouterr().out
    assert "    ops       how each overload of torch is computed" in out
    assert "  holdfast device ops --fallbacks            only those that fall back\n" in out


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
        "holdfast: error: unknown engine 'nump'\n  expected: one of numpy, torch\n  try: numpy\n"
    )


def test_json_tells_of_what_is_really_there(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(ops(capsys, "--json"))
    rows = found["overloads"]
    assert found["engine"] == "numpy"
    assert found["counts"] == coverage.counts([Row(**row) for row in rows])
    assert {"name": "add_.Tensor", "form": "in place", "way": "native", "op": "add.Tensor"} in rows
    assert found["counts"]["native"] > 1000


# ---- build


def test_building_tells_what_it_does_and_where_the_shim_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def build(progress: Any) -> Path:
        progress("compiling: about a minute")
        return tmp_path / "shim.so"

    monkeypatch.setattr(device.shim, "build", build)
    assert main(["device", "build"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        f"shim  {tmp_path / 'shim.so'}\n",
        "compiling: about a minute\n",
    )
