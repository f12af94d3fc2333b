from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from tests.needs import needs
from tests.topology.test_probes import _no_opencl

pytestmark = [pytest.mark.opencl, needs(_no_opencl())]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A search that finds something at once, and a folder for it."""
    from holdfast.compute.engines.opencl.matrix import gemm_search
    from holdfast.compute.engines.opencl.runtime import tuned_parameters

    def search(engine: Any, quick: bool, progress: Any) -> Any:
        progress("square", 0, 2)
        way = tuned_parameters.defaults(engine)["square"]
        tuned_parameters.save(engine, {"square": way})
        yield gemm_search.Found("square", (1000, 1000, 500), 4.0, 2.0, {"BM": 64, "BN": 8}, 2, 1)

    monkeypatch.setattr(gemm_search, "search", search)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_it_shows_times_before_and_after(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune"]) == 0
    first, *table, _, last = capsys.readouterr().out.splitlines()
    assert first.startswith("opencl:0 (")
    assert first.endswith(", kernels for CPUs")
    assert table == [
        "results  m x n x k      before          after                  parameters",
        "square   1000x1000x500  4 ms, 250 GF/s  2 ms, 500 GF/s  2.00x  BM=64 BN=8",
    ]
    (file,) = (measured / "opencl").glob("tuned-*.json")
    assert last == f"kept in {file}"


def test_json_has_all_numbers(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--device", "opencl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "opencl:0"
    assert found["mapping"] == "cpu"
    assert found["results"] == [
        {
            "name": "square",
            "size": [1000, 1000, 500],
            "before_ms": 4.0,
            "after_ms": 2.0,
            "settings": {"BM": 64, "BN": 8},
            "tried": 2,
            "failed": 1,
            "before_gflop_s": 250.0,
            "after_gflop_s": 500.0,
        }
    ]


def test_ctrl_c_is_no_error_to_look_at(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.compute.engines.opencl.matrix import gemm_search

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(gemm_search, "search", stop)
    assert main(["tune"]) == 130
    assert capsys.readouterr().err == "\nholdfast: stopped by Ctrl-C\n"


def test_other_devices_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--device", "cuda:0"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: cannot tune 'cuda:0'\n"
        "  expected: opencl:0, or another OpenCL device\n"
        "  try: holdfast device lists them\n"
    )


def test_without_pyopencl_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyopencl'] = None; from holdfast.cli.main import main; "
        "sys.exit(main(['tune']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "  try: pip install 'holdfast[opencl]'" in done.stderr
    assert "Traceback" not in done.stderr
