"""Two reports: verdicts only beyond the noise, and loud words about another machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.dashboard.bench import phrases
from holdfast.dashboard.bench.comparing import Change, Verdict, compare, judge
from holdfast.dashboard.bench.document import Machine, Row, Table

from .made_up import TABLE, report


def change(old: Row, new: Row) -> Change:
    found = compare(report(Table("t", rows=(old,))), report(Table("t", rows=(new,))))
    (only,) = found.changes
    return only


@pytest.mark.parametrize(
    ("ratio", "noise", "rate", "verdict"),
    [
        (1.2, 0.1, False, "worse"),
        (0.8, 0.1, False, "better"),
        (1.2, 0.1, True, "better"),
        (0.8, 0.1, True, "worse"),
        (1.09, 0.1, False, "the same within noise"),
        (1 / 1.09, 0.1, False, "the same within noise"),
        (1.0, None, False, "the same within noise"),
        (3.0, None, False, "spread not known"),
        (1.001, 0.0, False, "worse"),
    ],
)
def test_a_verdict_needs_a_change_beyond_the_noise(
    ratio: float, noise: float | None, rate: bool, verdict: Verdict
) -> None:
    assert judge(ratio, noise, rate) == verdict


def test_the_spreads_of_both_runs_count_together() -> None:
    old = Row("s", "holdfast", 10.0, "ms", low=9.5, high=10.5, ours=True)
    new = Row("s", "holdfast", 11.5, "ms", low=10.925, high=12.075, ours=True)
    found = change(old, new)
    assert found.noise == pytest.approx(0.2)
    assert found.verdict == "the same within noise"
    assert change(old, replace(new, value=13.0, low=12.9, high=13.1)).verdict == "worse"


def test_a_spread_that_only_one_run_has_counts_twice() -> None:
    old = Row("s", "holdfast", 10.0, "ms", low=9.5, high=10.5)
    assert change(old, Row("s", "holdfast", 11.0, "ms")).noise == pytest.approx(0.2)
    assert change(old, Row("s", "holdfast", 11.0, "ms")).verdict == "the same within noise"


@given(st.floats(0.01, 100), st.floats(0, 10), st.booleans())
def test_there_and_back_never_give_the_same_verdict_twice(
    ratio: float, noise: float, rate: bool
) -> None:
    there, back = judge(ratio, noise, rate), judge(1 / ratio, noise, rate)
    if there in ("better", "worse") and back in ("better", "worse"):
        assert there != back


def test_rows_are_paired_by_benchmark_subject_system_and_unit() -> None:
    old = report(Table("t", rows=(Row("s", "a", 1.0, "ms"), Row("s", "b", 1.0, "ms"))))
    new = report(
        Table("t", rows=(Row("s", "a", 2.0, "ms"), Row("s", "b", 1.0, "s"))),
        Table("u", rows=(Row("s", "a", 9.0, "ms"),)),
    )
    found = compare(old, new)
    assert [(c.table, c.system, c.old, c.new, c.ratio) for c in found.changes] == [
        ("t", "a", 1.0, 2.0, 2.0)
    ]
    assert (found.gone, found.added) == (1, 2)
    assert phrases.verdicts(found) == (
        "1 spread not known, 1 only in the earlier, 2 only in the later"
    )


def test_another_machine_is_said_loudly() -> None:
    other = Machine("box · Linux 6.1 · x86_64 · 64 GB", "Another Processor", 8, ("NVIDIA Card",))
    found = compare(report(), report(machine=other))
    assert phrases.warning(found) == (
        "DIFFERENT MACHINES: a change says nothing about Holdfast. "
        "CPU: A Processor and Another Processor"
    )
    assert phrases.warning(compare(report(), report())) is None


def test_quick_runs_and_other_versions_are_named() -> None:
    new = replace(report(replace(TABLE, quick=True)), holdfast="0.2.0")
    assert compare(report(), new).remarks == (
        "Holdfast 0.1.0 and 0.2.0",
        "pool: the later was a quick run",
    )


def test_peers_that_changed_too_tell_of_the_machine() -> None:
    def rows(factor: float, rate: float) -> tuple[Row, ...]:
        times = [Row(f"s{n}", "torch", factor * n, "ms") for n in (1, 2, 3)]
        return (
            *times,
            Row("r", "torch", rate, "GB/s"),
            Row("s1", "holdfast", 1.0, "ms", ours=True),
        )

    found = compare(report(Table("t", rows=rows(1, 6))), report(Table("t", rows=rows(1.5, 4))))
    assert found.remarks == (
        "the peers changed too, by 1.50× in the middle: the machine was not the same",
    )
    assert (
        compare(report(Table("t", rows=rows(1, 6))), report(Table("t", rows=rows(1, 6)))).remarks
        == ()
    )
