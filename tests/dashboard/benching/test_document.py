"""What follows from rows: who is ahead, by how much, and on the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.dashboard.bench.document import Machine, Row, Subject, Table, standings

from .made_up import HERE, TABLE, report

VALUES = st.floats(min_value=1e-9, max_value=1e9)


def test_half_the_time_and_twice_the_rate_are_both_twice_as_good() -> None:
    for unit, ours, theirs in (("ms", 1.0, 2.0), ("GB/s", 2.0, 1.0)):
        rows = (Row("s", "holdfast", ours, unit, ours=True), Row("s", "peer", theirs, unit))
        assert Subject("s", rows).times_better(rows[1]) == 2.0


def test_nothing_is_compared_with_nothing() -> None:
    ours, zero = Row("s", "holdfast", 2.0, "ms", ours=True), Row("s", "zero", 0.0, "ms")
    other, absent = Row("s", "other", 1.0, "s"), Row("s", "absent", None, "ms", "why")
    subject = Subject("s", (ours, zero, other, absent))
    assert [subject.times_better(row) for row in subject.rows] == [None] * 4
    assert [subject.verdict(row) for row in subject.rows] == [None] * 4
    assert Subject("s", (other,)).times_better(other) is None


@given(VALUES, VALUES, st.sampled_from(["ms", "GB/s"]))
def test_who_is_better_loses_when_the_figures_change_places(a: float, b: float, unit: str) -> None:
    def better(ours: float, theirs: float) -> float:
        rows = (Row("s", "holdfast", ours, unit, ours=True), Row("s", "peer", theirs, unit))
        found = Subject("s", rows).times_better(rows[1])
        assert found is not None
        return found

    assert better(a, b) * better(b, a) == pytest.approx(1.0)


def test_a_difference_within_the_spread_is_neither_won_nor_lost() -> None:
    ours = Row("s", "holdfast", 10.0, "ms", low=9.5, high=10.5, ours=True)
    close = Row("s", "close", 11.0, "ms", low=10.9, high=11.1)
    far, near_without = Row("s", "far", 13.0, "ms"), Row("s", "quicker", 8.0, "ms")
    subject = Subject("s", (ours, close, far, near_without))
    assert [subject.verdict(row) for row in subject.rows] == [None, "even", "win", "loss"]


def test_a_table_stands_by_the_geometric_mean_over_the_subjects_of_each_peer() -> None:
    (only,) = standings(TABLE)
    assert only.peer == "torch.empty"
    assert (only.subjects, only.least, only.most) == (2, 0.5, 1.5)
    assert only.mean == pytest.approx((0.5 * 1.5) ** 0.5)


def test_a_report_knows_which_tables_failed() -> None:
    failed = Table("svm", state="failed", reason="no")
    assert report(TABLE, failed).failed == (failed,)
    assert report(TABLE).table("pool") == TABLE
    assert report(TABLE).table("svm") is None


def test_machines_differ_by_what_counts_and_not_by_name_or_kernel() -> None:
    same = Machine("other · Linux 6.9 · x86_64 · 64 GB", "A Processor", 8, ("NVIDIA Card",))
    assert HERE.differences(same) == []
    other = Machine("box · Linux 6.1 · x86_64 · 32 GB", "A Processor", 4)
    assert HERE.differences(other) == [
        "logical CPUs: 8 and 4",
        "GPUs: NVIDIA Card and none",
        "memory: 64 GB and 32 GB",
    ]


def test_what_is_unknown_of_a_machine_is_no_difference() -> None:
    assert HERE.differences(Machine(HERE.about, None, None, HERE.gpus)) == []
