"""The benchmark against the peers, on small models and a CPU: its cells, its record, its words."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.topology import Topology, discover

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks_on_the_path() -> Iterator[None]:
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    ours = ("residency", "bench_residency", "report")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ours:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def parts(module: str, *names: str) -> list[Any]:
    """Names of a module of the benchmark."""
    file = importlib.import_module(module)
    return [getattr(file, name) for name in names]


@functools.cache
def machine() -> Topology:
    """Found out once: it takes seconds."""
    return discover()


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the benchmark on its smallest models; what it wrote."""
    bench_residency: Any = importlib.import_module("bench_residency")

    bench_residency.discover = machine
    out = tmp_path / "residency.json"
    bench_residency.main(
        ["--tiny", "--device", "cpu", "--steps", "2", "--out", str(out), *arguments]
    )
    return json.loads(out.read_text())


def room(row: dict[str, Any]) -> tuple[str, str]:
    return row["system"], row["room"]


def test_the_most_telling_cells_come_first_and_the_risky_ones_last() -> None:
    SYSTEMS, plan = parts("residency.cells", "SYSTEMS", "plan")

    cells = plan(["flux", "wan"], SYSTEMS, [0.0, 0.5], [0.1, 0.75])
    words = [(cell.model, cell.system, cell.room) for cell in cells]
    assert words[:10] == [
        ("flux", "resident", "no budget"),
        ("flux", "ours", "keep 0%"),
        ("flux", "ours", "keep 50%"),
        ("flux", "ours", "budget 10%"),
        ("flux", "ours", "budget 75%"),
        ("flux", "ours-packed", "keep 0%"),
        ("flux", "ours-packed", "keep 50%"),
        ("flux", "ours-packed", "budget 10%"),
        ("flux", "ours-packed", "budget 75%"),
        ("flux", "group-leaf", "no budget"),
    ]
    assert words[10:14] == [
        ("flux", "comfyui", "budget 10%"),
        ("flux", "mmgp", "budget 10%"),
        ("flux", "comfyui", "budget 75%"),
        ("flux", "mmgp", "budget 75%"),
    ]
    assert [system for _, system, _ in words[-4:]] == ["aimdo"] * 4
    assert len(set(cells)) == len(cells)


def test_rounds_go_forwards_and_backwards_within_a_stage() -> None:
    (plan,) = parts("residency.cells", "plan")

    cells = plan(["flux"], ["comfyui", "mmgp"], [], [0.5], rounds=2)
    systems = [cell.system for cell in cells]
    assert systems == ["resident"] * 2 + ["comfyui", "mmgp", "mmgp", "comfyui"]


@pytest.mark.parametrize(
    ("system", "keep", "budget", "kept"),
    [
        ("resident", None, None, 1000),
        ("compiled", None, None, 1000),
        ("ours", 0.25, None, 250),
        ("ours", None, 0.5, 400),
        ("ours", None, 0.05, 0),
        ("ours", None, 1.0, 900),
        ("group-leaf", None, None, 0),
    ],
)
def test_a_cell_can_keep_what_its_room_leaves_beside_a_step(
    system: str, keep: float | None, budget: float | None, kept: int
) -> None:
    Cell, most_kept_bytes = parts("residency.cells", "Cell", "most_kept_bytes")

    assert most_kept_bytes(Cell("flux", system, keep, budget), 1000, 100) == kept


def test_the_limit_is_compute_or_the_link_whichever_takes_longer() -> None:
    (limit_ms,) = parts("residency.cells", "limit_ms")

    assert limit_ms(100.0, 20_000_000_000, 0, 50.0) == 400.0
    assert limit_ms(100.0, 20_000_000_000, 10_000_000_000, 50.0) == 200.0
    assert limit_ms(100.0, 20_000_000_000, 19_000_000_000, 50.0) == 100.0


def test_weights_in_ram_and_on_the_device_are_the_same_and_start_at_pages() -> None:
    (SHAPES,) = parts("residency.shapes", "SHAPES")
    PAGE_BYTES, HostRoom, on_device = parts(
        "residency.weights", "PAGE_BYTES", "HostRoom", "on_device"
    )

    ram = HostRoom()
    device = torch.device("cpu")
    for make in SHAPES.values():
        shape = make(tiny=True)
        here = dict(ram.fill(shape, device).named_parameters())
        there = dict(on_device(shape, device).named_parameters())
        assert here.keys() == there.keys()
        assert all(torch.equal(here[name], there[name]) for name in here)
        assert all(parameter.data_ptr() % PAGE_BYTES == 0 for parameter in here.values())


@pytest.mark.slow
def test_every_system_that_a_cpu_can_run_gives_the_resident_output(tmp_path: Path) -> None:
    systems = "group-leaf,group-block,group-block-plain,accelerate"
    found = run(tmp_path, "--models", "flux,wan,sdxl", "--systems", systems, "--budgets", "50")
    rows = found["rows"]
    assert [row["error"] for row in rows] == [None] * 15
    assert [row["same_output"] for row in rows] == [True] * 15
    assert all(row["steps"] == 2 and row["step_ms"] > 0 for row in rows)
    assert found["left_out"] == found["lost"] == []
    assert set(found["models"]) == {"flux", "wan", "sdxl"}


@pytest.mark.slow
def test_ours_gives_the_resident_output_in_every_room(tmp_path: Path) -> None:
    systems = "ours,ours-packed"
    rooms = ("--keeps", "0,50", "--budgets", "75")
    rows = run(tmp_path, "--models", "flux", "--systems", systems, *rooms)["rows"]
    assert [row["error"] for row in rows] == [None] * 7
    assert [row["same_output"] for row in rows] == [True] * 7
    kept = {room(row): row["figures"]["kept_bytes"] for row in rows[1:]}
    for name in ("ours", "ours-packed"):
        assert kept[name, "keep 0%"] < kept[name, "keep 50%"] < kept[name, "budget 75%"]


class Wrong(nn.Module):
    """Gives something else than the model does."""

    def forward(self, **inputs: Any) -> tuple[torch.Tensor]:
        return (inputs["hidden_states"] * 0,)


@pytest.mark.slow
def test_a_wrong_output_and_a_failure_are_told_and_the_next_cell_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells: Any = importlib.import_module("residency.cells")
    (System,) = parts("residency.system", "System")

    class Lying(System):
        def apply(self, module: nn.Module, room: Any) -> None:
            super().apply(Wrong(), room)

    class Failing(System):
        def step(self, inputs: Any) -> torch.Tensor:
            raise OSError("no such file: /home/someone/weights/file.bin")

    monkeypatch.setitem(cells.SYSTEMS, "lying", cells.Entry(2, Lying))
    monkeypatch.setitem(cells.SYSTEMS, "failing", cells.Entry(1, Failing))
    found = run(tmp_path, "--models", "flux", "--systems", "lying,failing", "--budgets", "")
    resident, failing, lying = found["rows"]
    assert resident["same_output"] is True
    assert (failing["error"], failing["step_ms"]) == ("OSError: no such file: file.bin", None)
    assert (lying["error"], lying["same_output"]) == (None, False)
    assert lying["largest_difference"] > 0
    assert "OUTPUT DIFFERS" in capsys.readouterr().out


def test_a_cell_that_takes_too_long_is_stopped() -> None:
    TooLong, limited = parts("residency.running", "TooLong", "limited")

    def forever() -> None:
        with limited(0.02):
            while True:
                pass

    with pytest.raises(TooLong, match=r"^stopped after 0 s$"):
        forever()


@pytest.mark.slow
def test_a_run_out_of_time_names_what_it_left_out_and_another_goes_on(tmp_path: Path) -> None:
    wanted = ("--models", "flux", "--systems", "accelerate,group-leaf", "--budgets", "50")
    found = run(tmp_path, *wanted, "--time-limit", "-1")
    assert found["rows"] == []
    left = [cell["system"] for cell in found["left_out"]]
    assert left == ["resident", "group-leaf", "accelerate"]
    first = run(tmp_path, "--models", "flux", "--systems", "group-leaf", "--budgets", "50")
    both = run(tmp_path, *wanted, "--resume")
    assert [row["system"] for row in both["rows"]] == ["group-leaf", "resident", "accelerate"]
    assert both["rows"][0] == first["rows"][1]
    assert [row["same_output"] for row in both["rows"]] == [True] * 3


def row(system: str, step_ms: float | None, **more: Any) -> dict[str, Any]:
    """A row as the record writes it, as far as losing needs it."""
    nothing = dict.fromkeys(("keep", "budget", "budget_bytes"), None)
    peaks = dict.fromkeys(("driver_peak_bytes", "torch_peak_bytes"), None)
    return {"model": "flux", "system": system, "step_ms": step_ms} | nothing | peaks | more


def test_lost_cells_are_named_where_a_faster_peer_kept_within_the_budget() -> None:
    (lost,) = parts("residency.record", "lost")

    half = {"budget": 0.5, "budget_bytes": 500}
    rows = [
        row("resident", 1.0),
        row("compiled", 1.0),
        row("ours", 10.0, **half),
        row("ours-packed", 7.0, **half),
        row("comfyui", 8.0, **half),
        row("comfyui", 2.0, budget=0.75, budget_bytes=750),
        row("mmgp", None, **half),
        row("aimdo", 1.0, torch_peak_bytes=700, **half),
        row("group-leaf", 9.0, driver_peak_bytes=400),
        row("group-block", 3.0, driver_peak_bytes=600),
    ]
    assert [(loss["ours"], loss["peer"], loss["peer_ms"]) for loss in lost(rows)] == [
        ("ours", "comfyui", 8.0),
        ("ours", "group-leaf", 9.0),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--models", "fluks"], "'fluks' is none of flux, wan, sdxl, wan14b, qwen"),
        (["--budgets", "150"], "percentages from 0 to 100, got '150'"),
        (["--steps", "0"], "a whole number from 1, got '0'"),
    ],
)
def test_wrong_options_are_said(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_residency: Any = importlib.import_module("bench_residency")

    with pytest.raises(SystemExit):
        bench_residency.options(arguments)
    assert complaint in capsys.readouterr().err
