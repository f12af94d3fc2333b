"""Compare two reports, figure by figure: what changed, and whether that is more than noise.

A verdict needs a change beyond the combined spread of both figures; a spread known for only one of
them counts twice, and without any there is no verdict.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.base.codec import about
from holdfast.dashboard.bench.document import Report, Row, Version

LEAST_PEERS = 3  # peer figures needed to judge the load of the machine
NOTICED = 1.1
Verdict = Literal["better", "worse", "the same within noise", "spread not known"]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both reports."""

    table: str = about("the benchmark")
    subject: str = about("what was measured")
    system: str = about("whose figure it is")
    unit: str = about("the unit of both")
    old: float = about("the earlier figure")
    new: float = about("the later one")
    ratio: float = about("new over old")
    noise: float | None = about("the spreads of both together, as a part of the figure")
    verdict: Verdict = about("what that means")
    ours: bool = about("whether the system is Holdfast")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports, compared."""

    old_date: str = about("when the earlier was measured")
    new_date: str = about("when the later was measured")
    old_machine: str = about("where the earlier was measured")
    new_machine: str = about("where the later was measured")
    differences: tuple[str, ...] = about("what is not the same in the two machines; empty is well")
    remarks: tuple[str, ...] = about("what else should be known before comparing")
    changes: tuple[Change, ...] = about("figures that both have")
    gone: int = about("figures that only the earlier has")
    added: int = about("figures that only the later has")

    def counts(self) -> dict[str, int]:
        """Number of changes by verdict."""
        return dict(Counter(change.verdict for change in self.changes))


def compare(old: Report, new: Report) -> Comparison:
    """Compare the figures that both have, in the order of the new report."""
    before, after = dict(_figures(old)), dict(_figures(new))
    changes = tuple(
        change
        for key, row in after.items()
        if key in before and (change := _change(key[0], before[key], row)) is not None
    )
    return Comparison(
        old_date=old.date,
        new_date=new.date,
        old_machine=old.machine.about,
        new_machine=new.machine.about,
        differences=tuple(old.machine.differences(new.machine)),
        remarks=(*_remarks(old, new), *_state_of_the_machine(changes)),
        changes=changes,
        gone=len(before.keys() - after.keys()),
        added=len(after.keys() - before.keys()),
    )


def _figures(report: Report) -> Iterator[tuple[tuple[str, str, str, str], Row]]:
    for table in report.tables:
        for row in table.rows:
            if row.value:
                yield (table.name, row.subject, row.system, row.unit), row


def _change(table: str, old: Row, new: Row) -> Change | None:
    if not old.value or not new.value:
        return None
    ratio = new.value / old.value
    known = [noise for noise in (old.noise, new.noise) if noise is not None]
    noise = sum(known) * 2 / len(known) if known else None
    verdict = judge(ratio, noise, new.more_is_better)
    return Change(
        *(table, new.subject, new.system, new.unit),
        *(old.value, new.value, ratio, noise, verdict, new.ours),
    )


def judge(ratio: float, noise: float | None, more_is_better: bool) -> Verdict:
    """The verdict on a change by `ratio` (new / old), given the relative spread `noise`."""
    if ratio == 1 or (noise is not None and ratio > 0 and max(ratio, 1 / ratio) - 1 <= noise):
        return "the same within noise"
    if noise is None or ratio <= 0:
        return "spread not known"
    return "better" if (ratio > 1) == more_is_better else "worse"


def _remarks(old: Report, new: Report) -> Iterator[str]:
    if old.holdfast != new.holdfast:
        yield f"Holdfast {old.holdfast} and {new.holdfast}"
    before = {version.name: version.version for version in _versions(old).values()}
    for version in _versions(new).values():
        if before.get(version.name, version.version) != version.version:
            yield f"{version.name} {before[version.name]} and {version.version}"
    for table in new.tables:
        earlier = old.table(table.name)
        if earlier is not None and {earlier.quick, table.quick} == {True, False}:
            quick = "the earlier" if earlier.quick else "the later"
            yield f"{table.name}: {quick} was a quick run"


def _state_of_the_machine(changes: Sequence[Change]) -> Iterator[str]:
    """Changes of peers show that the machine was more or less busy."""
    slower = [
        1 / change.ratio if change.unit.endswith("/s") else change.ratio
        for change in changes
        if not change.ours and change.ratio > 0
    ]
    if len(slower) < LEAST_PEERS:
        return
    middle = statistics.median(slower)
    if max(middle, 1 / middle) > NOTICED:
        yield f"the peers changed too, by {middle:.2f}× in the middle: the machine was not the same"


def _versions(report: Report) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for table in report.tables:
        found |= {version.name: version for version in table.versions}
    return found | {version.name: version for version in report.versions}
