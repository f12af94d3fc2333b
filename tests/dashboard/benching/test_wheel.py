"""What a wheel brings along for `holdfast bench`, and that it runs from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.dashboard.bench.catalog import CATALOG
from tests.comfyui import server
from tests.needs import needs

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@needs(server.missing())  # its set-up brings the builder
def test_a_wheel_brings_the_scripts_and_traces_and_they_run_from_there(tmp_path: Path) -> None:
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    _python("-c", program, str(tmp_path), cwd=ROOT, path=server.SITE)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        files = {Path(name): file.getinfo(name).file_size for name in file.namelist()}
        file.extractall(site)
    brought = {name: size for name, size in files.items() if name.parts[1:2] == ("benchmarks",)}
    names = {name.relative_to("holdfast/benchmarks").as_posix() for name in brought}
    assert {"report.py", *(one.script for one in CATALOG)} <= names
    traces = {file.name for file in (ROOT / "benchmarks" / "traces").iterdir()}
    assert {f"traces/{name}" for name in traces} <= names
    assert not {name for name in names if name.startswith("results/") or name.endswith(".sh")}
    assert sum(brought.values()) < 1_500_000
    _python(
        *("-m", "holdfast", "bench", "replay", "--quick", "--out", "report"),
        cwd=tmp_path,
        path=site,
    )
    (table,) = json.loads((tmp_path / "report" / "report.json").read_text())["tables"]
    assert (table["name"], table["state"]) == ("replay", "measured")
    assert len(table["rows"]) == 18


def _python(*arguments: str, cwd: Path, path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path), "HOLDFAST_PROBES": "linux"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
