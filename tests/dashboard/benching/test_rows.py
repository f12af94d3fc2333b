"""The protocol that the scripts of benchmarks/ share, and that the catalog has them all."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import NotFound
from holdfast.dashboard.bench import ability
from holdfast.dashboard.bench.catalog import CATALOG, Peer, select
from holdfast.dashboard.bench.reading import read
from holdfast.topology import OpenclDevice, Topology, TorchDevice

from .made_up import benchmark

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def rows() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("report")
    sys.path.remove(str(BENCHMARKS))
    del sys.modules["report"]


def test_a_median_knows_the_middle_half_of_its_runs(rows: Any) -> None:
    found = rows.middle([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found, found.low, found.high) == (3.0, 2.0, 4.0)
    few = rows.middle([3.0, 1.0, 2.0])
    assert (few, few.low, few.high) == (2.0, 1.0, 3.0)


def test_the_best_knows_the_quicker_half(rows: Any) -> None:
    found = rows.best([5.0, 1.0, 3.0])
    assert (found, found.low, found.high) == (1.0, 1.0, 3.0)


def test_the_span_goes_along_when_a_figure_is_scaled(rows: Any) -> None:
    found = rows.Measured(4.0, 2.0, 5.0)
    less, double, rate = found - 1.0, found * 2, 20 / found
    assert (less, less.low, less.high) == (3.0, 1.0, 4.0)
    assert (double, double.low, double.high) == (8.0, 4.0, 10.0)
    assert (rate, rate.low, rate.high) == (5.0, 4.0, 10.0)


def test_what_is_published_is_read_back_with_its_spread(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setenv("BENCH_ROWS", str(told))
    made = [
        rows.Row("s", "holdfast", rows.Measured(2.0, 1.0, 3.0), "ms", "quick"),
        rows.Row("s", "torch", 4.0, "ms"),
    ]
    rows.publish("made up", made, Topology(hostname="box"), tmp_path / "x.json", quick=True)
    found = read(tmp_path / "x.json")
    (table,) = found.tables
    ours, torch = table.rows
    assert (ours.value, ours.low, ours.high, ours.remark) == (2.0, 1.0, 3.0, "quick")
    assert (torch.value, torch.low, torch.high) == (4.0, None, None)
    assert (table.name, table.quick, found.machine.about) == ("made-up", True, "box")
    assert table.versions[0].name == "python"
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(line["system"], line["value"]) for line in lines] == [
        ("holdfast", 2.0),
        ("torch", 4.0),
    ]


# ---- the catalog


def test_every_script_is_in_the_catalog_and_takes_what_all_take() -> None:
    scripts = {file.name: file.read_text() for file in BENCHMARKS.glob("bench_*.py")}
    assert {one.script for one in CATALOG} == scripts.keys()
    for name, text in scripts.items():
        assert "arguments(" in text or ("add_quick(parser)" in text and '"--out"' in text), name
        assert "quick=" in text or '"quick"' in text, name  # the results say so


def test_all_that_can_run_without_a_gpu_is_quick_in_five_minutes() -> None:
    assert (
        sum(one.seconds(quick=True) for one in CATALOG if not one.needs or one.needs == ("opencl",))
        <= 300
    )


def test_names_choose_and_keep_the_order_of_the_table() -> None:
    assert [one.name for one in select(["pool", "topology"])] == ["topology", "pool"]
    assert select([]) == CATALOG


def test_an_unknown_name_is_refused_with_the_one_that_was_meant() -> None:
    known = ", ".join(one.name for one in CATALOG)
    with pytest.raises(NotFound) as caught:
        select(["compute", "polo"])
    assert str(caught.value) == (
        f"there is no benchmark 'polo'\n  expected: some of {known}\n  try: holdfast bench pool"
    )
    with pytest.raises(NotFound, match=r"\n  try: holdfast bench --list$"):
        select(["what"])


# ---- what can run

NOTHING = Topology(hostname="box")
CARD = TorchDevice(id="cuda:0", backend="cuda")
OPENCL = OpenclDevice(id="opencl:0:0", platform="p", name="n", kind="gpu")


def test_a_benchmark_that_cannot_run_says_what_is_missing() -> None:
    absent = benchmark("a", modules={"json": "", "no_such_module": "pip install it"})
    assert ability.why_not(absent, NOTHING) == "no_such_module is not installed: pip install it"
    cuda, opencl = benchmark("b", needs=("cuda",)), benchmark("c", needs=("opencl",))
    assert ability.why_not(cuda, NOTHING) == "torch sees no CUDA or ROCm device here"
    assert ability.why_not(cuda, NOTHING.replace(torch=(CARD,))) is None
    assert ability.why_not(opencl, NOTHING) == (
        "there is no OpenCL device: a driver, or apt-get install pocl-opencl-icd"
    )
    assert ability.why_not(opencl, NOTHING.replace(opencl=(OPENCL,))) is None
    assert ability.why_not(benchmark("d", needs=("comfyui",)), NOTHING) == (
        "ComfyUI cannot be imported: PYTHONPATH=FOLDER of a clone of ComfyUI"
    )


def test_a_gpu_gets_large_sizes_only_where_both_can_use_it() -> None:
    made = benchmark("a", on_gpu=("--large",))
    assert ability.arguments(made, NOTHING.replace(torch=(CARD,))) == ()
    assert ability.arguments(made, NOTHING.replace(torch=(CARD,), opencl=(OPENCL,))) == ("--large",)


def test_peers_that_are_missing_say_how_to_get_them(tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    peers = (
        Peer("json", "nowhere", module="json"),
        Peer("zzz", "pip install zzz", module="no_such_module"),
        Peer("python", "nowhere", program=sys.executable),
        Peer("lstopo", "apt-get install hwloc", program="no-such-program"),
        Peer("tcmalloc", "apt-get install tcmalloc", files=(str(file),)),
    )
    made = benchmark("a", peers=peers)
    assert [(one.name, one.get) for one in ability.missing_peers(made)] == [
        ("zzz", "pip install zzz"),
        ("lstopo", "apt-get install hwloc"),
        ("tcmalloc", "apt-get install tcmalloc"),
    ]
    file.touch()
    assert [one.name for one in ability.missing_peers(made)] == ["zzz", "lstopo"]


def test_the_scripts_of_a_clone_are_found_first() -> None:
    assert ability.scripts() == BENCHMARKS
