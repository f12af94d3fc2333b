"""Every committed result is a report; what is none is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput
from holdfast.dashboard.bench.document import Report, Row, Subject
from holdfast.dashboard.bench.reading import read

from .made_up import report

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("*.json"))


def subjects(name: str) -> dict[str, Subject]:
    (table,) = read(RESULTS / name).tables
    return {subject.name: subject for subject in table.subjects()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_committed_file_gives_rows_with_a_machine_and_a_date(file: Path) -> None:
    found = read(file)
    (table,) = found.tables
    assert table.rows
    assert table.name in file.stem
    assert found.date == json.loads(file.read_text())["date"]
    assert found.machine.about
    assert any(row.ours for row in table.rows)
    assert Report.from_json(found.to_json()) == found


def test_rows_are_taken_over_as_they_were_written() -> None:
    written = json.loads((RESULTS / "compute-cpu.json").read_text())["rows"]
    (table,) = read(RESULTS / "compute-cpu.json").tables
    seen = [(r.subject, r.system, r.value, r.unit, r.remark) for r in table.rows]
    keys = ("subject", "system", "value", "unit", "remark")
    assert seen == [tuple(row[key] for key in keys) for row in written]


def test_systems_without_a_budget_stand_beside_us_at_the_smallest() -> None:
    found = subjects("residency-h200.json")
    smallest = found["flux, budget 10%"]
    assert [row.system for row in smallest.rows][:2] == ["holdfast", "holdfast, packed"]
    assert {"ComfyUI", "mmgp", "aimdo", "accelerate cpu_offload"} <= {
        r.system for r in smallest.rows
    }
    offload = next(row for row in smallest.rows if row.system == "diffusers, groups of leaves")
    assert offload.remark.endswith("has no budget of its own")
    assert (offload.low, offload.high) != (None, None)
    assert [row.system for row in found["flux, all fits"].rows] == [
        "all in memory, torch.compile",
        "all in memory",
    ]


def test_predictions_stand_beside_what_was_measured() -> None:
    row, measured = subjects("residency-fit-h200.json")["step, 25% kept, packed"].rows
    cells = json.loads((RESULTS / "residency-fit-h200.json").read_text())["cells"]
    assert (row.system, row.value) == ("holdfast fit, predicted", cells[3]["step_ms"])
    assert measured.system == "measured"


def test_the_simulated_allocator_stands_beside_the_real_one() -> None:
    for subject in subjects("replay-torch-h200.json").values():
        ours, torch = subject.rows
        assert ours.value == torch.value
        assert ours.remark == "equal to the byte"


def test_whole_networks_are_beside_the_rows_of_opencl() -> None:
    ours, torch = subjects("opencl-h200.json")["forward, tiny unet"].rows
    assert (ours.system, torch.system) == ("holdfast, OpenCL", "torch, cuda")


def test_the_first_system_is_ours_where_no_name_says_so(tmp_path: Path) -> None:
    rows = [
        {"subject": "one", "system": "fused", "value": 1.0, "unit": "ms"},
        {"subject": "one", "system": "plain", "value": 2.0, "unit": "ms"},
        {"subject": "two", "system": "plain", "value": 2.0, "unit": "ms"},
        {"subject": "three", "system": "plain", "value": float("nan"), "unit": "ms"},
        {"subject": "three", "system": "Holdfast", "value": 2.0, "unit": "ms", "low": 1, "high": 3},
    ]
    (table,) = read(_written(tmp_path, {"benchmark": "x", "date": "d", "rows": rows})).tables
    assert [row.ours for row in table.rows] == [True, False, False, False, True]
    assert table.rows[3].value is None
    assert table.rows[4] == Row("three", "Holdfast", 2.0, "ms", low=1.0, high=3.0, ours=True)


def test_a_part_that_failed_is_a_row_with_its_reason(tmp_path: Path) -> None:
    document = {"benchmark": "xla", "date": "d", "rows": [], "failed": {"flux": "out of memory"}}
    (table,) = read(_written(tmp_path, document)).tables
    assert table.rows == (Row("flux", "holdfast", None, "", "out of memory", ours=True),)


def test_a_report_of_ours_is_read_back_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(report().to_json())
    assert read(file) == report()


def _written(folder: Path, document: Any) -> Path:
    file = folder / "results.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


EXPECTED = "\n  expected: a JSON file of holdfast bench, or of a script in benchmarks/"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"date": "d"}, " as results: it has no rows" + EXPECTED),
        ({"rows": 3, "date": "d"}, " as results: it has no rows" + EXPECTED),
        ({"rows": ["x"], "date": "d"}, " as results: it has no rows" + EXPECTED),
        (
            {"rows": [{"subject": "a", "system": "b", "value": "c", "unit": "d"}], "date": "d"},
            " as results: TypeError (must be real number, not str)" + EXPECTED,
        ),
        (
            {"benchmark": "holdfast bench", "version": 7},
            " as results: this report has version 7"
            "\n  expected: version 1, as this Holdfast writes it",
        ),
        (
            {"benchmark": "holdfast bench", "version": 1, "date": "d"},
            " as results: the field 'machine' is missing"
            "\n  expected: Report with date, holdfast, machine, tables",
        ),
        ("[]", ": it holds no JSON object\n  try: copy or download it again"),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, document: Any, reason: str) -> None:
    file = _written(tmp_path, document)
    with pytest.raises(BadInput) as caught:
        read(file)
    assert str(caught.value) == f"cannot read {str(file)!r}{reason}"
