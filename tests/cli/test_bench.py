"""`holdfast bench`: listing, comparing, measuring for real, and being stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import bench
from holdfast.cli.main import main
from holdfast.dashboard.bench import ability
from holdfast.dashboard.bench.catalog import CATALOG
from holdfast.dashboard.bench.document import Report
from holdfast.topology import Topology
from tests.dashboard.benching.made_up import GOOD, report, script

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MACHINE = Topology(hostname="box", cpu_model="A Processor")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing in it."""
    monkeypatch.setattr(bench, "discover", lambda config: MACHINE)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: None) -> Path:
    """An empty folder for scripts that are made up."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setattr(ability, "scripts", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """An earlier and a later report, the later with one figure twice as large."""
    slower = [{**row, "value": 4.0} for row in json.loads(report().to_json())["tables"][0]["rows"]]
    later = json.loads(report().to_json())
    later["tables"][0]["rows"][0] = {**slower[0], "low": 3.9, "high": 4.1}
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    for file, text in zip(files, (report().to_json(), json.dumps(later)), strict=True):
        file.write_text(text)
    return [str(file) for file in files]


# ---- listing


def test_the_list_says_what_can_run_and_what_is_missing(capsys, here: None) -> None:
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    for benchmark in CATALOG:
        assert benchmark.name in out
    assert "torch sees no CUDA or ROCm device here" in out
    assert f" of {len(CATALOG)} can run here: about " in out


def test_the_list_as_json_has_the_same(capsys, here: None) -> None:
    assert main(["bench", "residency", "replay", "--list", "--json"]) == 0
    replay, residency = json.loads(capsys.readouterr().out)
    assert (replay["name"], replay["reason"]) == ("replay", None)
    assert residency["reason"] == "torch sees no CUDA or ROCm device here"


# ---- comparing


def test_two_files_are_compared_without_running(capsys, two: list[str]) -> None:
    assert main(["bench", "--compare", *two]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = "benchmark subject system earlier later ÷ noise verdict"
    assert " ".join(lines[0].split()) == heads
    assert lines[1].split("  ")[0] == "pool"
    assert lines[1].split()[-1] == "worse"
    assert lines[-1] == "1 worse, 4 the same within noise"


def test_a_comparison_is_written_where_it_is_asked_for(capsys, two: list[str], tmp_path) -> None:
    folder = tmp_path / "a" / "b"
    assert main(["bench", "--compare", *two, "--out", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    assert sorted(file.name for file in folder.iterdir()) == [
        "compare.html",
        "compare.json",
        "compare.md",
    ]
    assert (folder / "compare.json").read_text() == printed
    assert json.loads(printed)["changes"][0]["verdict"] == "worse"


def test_results_of_different_machines_are_compared_with_a_loud_word(capsys) -> None:
    files = [str(RESULTS / name) for name in ("opencl-cpu.json", "opencl-h200.json")]
    assert main(["bench", "--compare", *files]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("DIFFERENT MACHINES: a change says nothing about Holdfast. CPU: AMD")


# ---- wrong input


def test_wrong_input_is_refused_before_anything_runs(capsys, tmp_path: Path, here: None) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    wrong = {
        ("polo",): "there is no benchmark 'polo'",
        ("--compare", "no.json"): "cannot read 'no.json': No such file or directory",
        ("--compare", str(file)): f"cannot read {str(file)!r} as results: it has no rows",
        ("--compare", "a", "b", "c"): "cannot compare 3 files",
        ("replay", "--out", str(file)): f"cannot write into {str(file)!r}: File exists",
    }
    for arguments, what in wrong.items():
        assert main(["bench", *arguments]) == 2
        assert capsys.readouterr().err.splitlines()[0] == f"holdfast: error: {what}"


# ---- measuring


def test_one_that_fails_gives_status_1_and_a_whole_report(
    capsys, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (script(scripts, "good", GOOD), script(scripts, "bad", "sys.exit('no luck')"))
    monkeypatch.setattr(bench, "select", lambda names: made)
    assert main(["bench"]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "(1 of 2) good: began",
        captured.err.splitlines()[1],
        "(2 of 2) bad: began",
        "(2 of 2) bad: failed: no luck",
    ]
    assert "torch 2.00×" in captured.out
    folder = scripts.parent / "holdfast-bench"
    found = Report.from_json((folder / "report.json").read_text())
    assert [table.state for table in found.tables] == ["measured", "failed"]
    for name in ("report.html", "report.md"):
        assert "failed: no luck" in (folder / name).read_text()


def test_nothing_measured_is_status_1(capsys, scripts: Path) -> None:
    assert main(["bench", "residency", "--json"]) == 1
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["state"] == "not run"


def test_a_run_is_compared_with_an_earlier_one(
    capsys, scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (script(scripts, "good", GOOD),)
    monkeypatch.setattr(bench, "select", lambda names: made)
    assert main(["bench"]) == 0
    earlier = str(tmp_path / "holdfast-bench" / "report.json")
    assert main(["bench", "--compare", earlier, "--out", "again"]) == 0
    assert "2 the same within noise" in capsys.readouterr().out
    assert "2 the same within noise" in (tmp_path / "again" / "report.html").read_text()


@pytest.mark.slow
def test_a_real_benchmark_stopped_by_ctrl_c_leaves_a_report_with_the_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "bench", "replay", "compute", "--quick"]
    lines = []
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, env=_environment()
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            lines.append(line)
            if line == "(2 of 2) compute: began\n":
                running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert lines[-1] == "holdfast: stopped by Ctrl-C\n"
    replay, compute = Report.from_json((tmp_path / "report.json").read_text()).tables
    assert (replay.state, len(replay.rows)) == ("measured", 18)
    assert (compute.state, compute.reason) == ("stopped", "stopped by Ctrl-C")
    text = (tmp_path / "report.html").read_text()
    assert "holdfast pool" in text
    assert "<td>stopped by Ctrl-C</td>" in text


def _environment() -> dict[str, str]:
    return os.environ | {"HOLDFAST_PROBES": "linux"}
