"""The report of a benchmark run: tables and rows, its JSON, and comparisons with peers.

Plain values; `Report.from_json(report.to_json()) == report`. Unknown is None.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, Self

from holdfast.base.codec import about as means
from holdfast.base.codec import decode, encode
from holdfast.base.errors import BadInput

KIND = "holdfast bench"
VERSION = 1
State = Literal["measured", "not run", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one system on one subject."""

    subject: str = means("what was measured; rows of the same subject are compared")
    system: str = means("whose figure it is")
    value: float | None = means("the figure; None where there is none, and the remark says why")
    unit: str = means("its unit: ms, µs, s, GB/s, x (a ratio) …")
    remark: str = means("what else was seen", default="")
    low: float | None = means("where the middle half of its runs begins", default=None)
    high: float | None = means("where it ends", default=None)
    ours: bool = means("whether the system is Holdfast", default=False)

    @property
    def more_is_better(self) -> bool:
        """True for rates; times, bytes and ratios should be small."""
        return self.unit.endswith("/s")

    @property
    def noise(self) -> float | None:
        """Relative spread of its runs: 0.1 is 10 %. None if unknown."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / abs(self.value)


@dataclass(frozen=True, slots=True)
class Version:
    """A package and its version."""

    name: str = means("its name")
    version: str = means("its version")


@dataclass(frozen=True, slots=True)
class Absentee:
    """A peer that is not installed."""

    name: str = means("what it is called")
    get: str = means("how to get it")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    about: str = means("the machine in a line")
    cpu: str | None = means("what its CPU is called", default=None)
    cpus: int | None = means("logical CPUs", default=None)
    gpus: tuple[str, ...] = means("its GPUs", default=())

    def differences(self, other: Machine) -> list[str]:
        """Differences to another machine as text, except host name and kernel.

        Memory is the last word of `about`.
        """
        pairs = {
            "CPU": (self.cpu, other.cpu),
            "logical CPUs": (self.cpus, other.cpus),
            "GPUs": (", ".join(self.gpus) or "none", ", ".join(other.gpus) or "none"),
            "memory": (_last(self.about), _last(other.about)),
        }
        return [
            f"{name}: {one} and {two}"
            for name, (one, two) in pairs.items()
            if one is not None and two is not None and one != two
        ]


def _last(about: str) -> str | None:
    return about.rpartition(" · ")[2] or None


@dataclass(frozen=True, slots=True)
class Table:
    """One benchmark: its rows, or why there are none."""

    name: str = means("its name: `holdfast bench NAME`")
    about: str = means("what it measures, in a sentence", default="")
    state: State = means("how it went", default="measured")
    reason: str | None = means("why it was not run, failed or stopped", default=None)
    date: str | None = means("when it was measured, as ISO 8601", default=None)
    took_s: float | None = means("how long it took", default=None)
    quick: bool | None = means("whether it was a quick run: fewer sizes and runs", default=None)
    rows: tuple[Row, ...] = means("its figures", default=())
    versions: tuple[Version, ...] = means("what took part", default=())
    absent: tuple[Absentee, ...] = means("peers that are not installed here", default=())

    def subjects(self) -> tuple[Subject, ...]:
        """Its rows, subject by subject, in their order."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.subject, []).append(row)
        return tuple(Subject(name, tuple(rows)) for name, rows in found.items())


@dataclass(frozen=True, slots=True)
class Subject:
    """Rows that are compared with each other."""

    name: str
    rows: tuple[Row, ...]

    @property
    def ours(self) -> Row | None:
        """Our first row; None if only others were measured."""
        return next((row for row in self.rows if row.ours and row.value is not None), None)

    def times_better(self, row: Row) -> float | None:
        """How many times better our figure is than `row`'s: 2.0 is half the time or twice the rate.

        None for our own rows, and if a figure is missing or 0.
        """
        ours = self.ours
        if ours is None or row.ours or not ours.value or not row.value or ours.unit != row.unit:
            return None
        ratio = row.value / ours.value
        return 1 / ratio if row.more_is_better else ratio

    def verdict(self, row: Row) -> Literal["win", "loss", "even"] | None:
        """Who is ahead; "even" if the difference is within the combined spread."""
        ours, better = self.ours, self.times_better(row)
        if ours is None or better is None:
            return None
        noise = (ours.noise or 0.0) + (row.noise or 0.0)
        if max(better, 1 / better) - 1 <= noise:
            return "even"
        return "win" if better > 1 else "loss"


@dataclass(frozen=True, slots=True)
class Standing:
    """Ours against one peer over all common subjects of a table."""

    peer: str
    mean: float  # the geometric mean of `times_better`
    least: float
    most: float
    subjects: int


def standings(table: Table) -> tuple[Standing, ...]:
    """Ours against each peer, in order of appearance."""
    found: dict[str, list[float]] = {}
    for subject in table.subjects():
        for row in subject.rows:
            better = subject.times_better(row)
            if better is not None and better > 0:
                found.setdefault(row.system, []).append(better)
    return tuple(
        Standing(peer, math.exp(math.fsum(map(math.log, r)) / len(r)), min(r), max(r), len(r))
        for peer, r in found.items()
    )


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run or one file."""

    machine: Machine = means("where it was measured")
    date: str = means("when it began, as ISO 8601")
    holdfast: str = means("the version of Holdfast")
    tables: tuple[Table, ...] = means("the benchmarks, in the order in which they were run")
    versions: tuple[Version, ...] = means("Python and the packages of that machine", default=())

    def table(self, name: str) -> Table | None:
        """The table of that name."""
        return next((table for table in self.tables if table.name == name), None)

    @property
    def failed(self) -> tuple[Table, ...]:
        """Tables of benchmarks that failed."""
        return tuple(table for table in self.tables if table.state == "failed")

    def to_json(self) -> str:
        """Encode as JSON; deterministic."""
        document = {"benchmark": KIND, "version": VERSION, **encode(self)}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """A report from parsed JSON of `to_json`. Raises BadInput."""
        if document.get("version") != VERSION:
            raise BadInput(
                f"this report has version {document.get('version')!r}",
                expected=f"version {VERSION}, as this Holdfast writes it",
            )
        fields = {key: value for key, value in document.items() if key in cls.__slots__}
        return decode(cls, fields)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A report from the text of `to_json`. Raises BadInput."""
        return cls.from_document(json.loads(text))
