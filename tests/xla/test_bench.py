"""The benchmark of XLA: what it takes, how it tells, and small parts of it run on a CPU."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks_on_the_path() -> Iterator[None]:
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("xla", "bench_xla", "report"):
            del sys.modules[name]


@pytest.fixture
def bench() -> Any:
    return importlib.import_module("bench_xla")


@pytest.fixture
def working() -> Any:
    return importlib.import_module("xla.working")


@pytest.fixture
def settings(working: Any, tmp_path: Path) -> Any:
    return working.Settings("cpu", tiny=True, steps=2, warm=1, folder=str(tmp_path))


def test_a_part_that_does_not_exist_is_refused(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.options(["--parts", "flux,painting"])
    said = capsys.readouterr().err
    known = "agreement, attention, flux, networks, compile"
    assert f"argument --parts: 'painting' is none of {known}" in said


def test_every_part_of_a_device_is_a_method(bench: Any) -> None:
    for parts in bench.PARTS.values():
        for part in parts:
            assert callable(getattr(bench.Run, part))


def test_systems_take_turns_to_and_fro(working: Any, settings: Any) -> None:
    order: list[str] = []
    steps = {name: (lambda name=name: order.append(name)) for name in ("ours", "theirs")}
    times = working.in_turns_ms(steps, settings)
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert {name: len(found) for name, found in times.items()} == {"ours": 2, "theirs": 2}


def test_a_part_that_fails_costs_its_own_figures_alone(
    bench: Any, settings: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    run = bench.Run(settings, 60.0)
    assert run.part("no_such_part") is None
    assert run.failed == {"no_such_part": "it ended with 1"}
    assert "No module named 'xla.no_such_part'" in capfd.readouterr().err


def test_a_part_that_takes_too_long_is_stopped(working: Any, settings: Any) -> None:
    done = working.outcome("flux_torch", settings, 0.01)
    assert done.figures is None
    assert done.error == "it took more than 0 s"


def test_parts_that_were_not_run_are_kept_from_an_earlier_run(bench: Any, settings: Any) -> None:
    run = bench.Run(settings, 60.0)
    run.rows.append(bench.Row("FLUX.1 step", "Holdfast", 134.0, "ms"))
    run.figures["flux"] = {"now": 1}
    row = {"system": "Holdfast", "value": 1.0, "unit": "ms", "remark": "", "ratio": None}
    earlier = {
        "date": "2026-11-16",
        "figures": {"flux": {"before": 1}, "agreement, attention": {"1 x 1": 0.0}},
        "rows": [{"subject": "FLUX.1 step", **row}, {"subject": "attention, 4608", **row}],
    }
    said = run.keep(earlier)
    assert said == {"date": "2026-11-16", "kept": ["agreement, attention", "attention, 4608"]}
    assert run.figures == {"flux": {"now": 1}, "agreement, attention": {"1 x 1": 0.0}}
    assert [(one.subject, one.value) for one in run.rows] == [
        ("FLUX.1 step", 134.0),
        ("attention, 4608", 1.0),
    ]


@pytest.mark.skipif(
    not os.environ.get("HOLDFAST_TEST_ALL"), reason="takes a minute: make test-all runs it"
)
def test_ours_and_torch_draw_the_same_from_one_seed(bench: Any, tmp_path: Path) -> None:
    out = tmp_path / "xla.json"
    said = ["--device", "cpu", "--tiny", "--steps", "2", "--warm", "1", "--out", str(out)]
    bench.main([*said, "--parts", "flux", "--flux", "scan,eager"])
    found = json.loads(out.read_text())
    assert found["failed"] == {}
    assert [(row["subject"], row["system"]) for row in found["rows"]] == [
        ("FLUX.1 step", "Holdfast, blocks scanned"),
        ("FLUX.1 step", "torch eager"),
    ]
    assert found["figures"]["flux"]["scan"][0]["difference"] < 0.05  # both in bfloat16
