"""Two recordings side by side, by source line: what grew, what shrank.

Covers: bytes at the peak, at the end and in all, and how many blocks, of each line before and
after.  Leaves to others: one recording (report).
Promise: lines are told apart by file, line and function, so a line that moved is two lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.base.units import format_bytes
from holdfast.memory.recording import Recording
from holdfast.memory.report import TOP, Report, Share


class Amount(NamedTuple):
    """One figure before and after."""

    before: int
    after: int

    @property
    def change(self) -> int:
        """After less before."""
        return self.after - self.before


class Line(NamedTuple):
    """One source line in both recordings."""

    name: str
    peak_bytes: Amount
    end_bytes: Amount
    total_bytes: Amount
    total_blocks: Amount


class Diff:
    """What is different between two recordings."""

    def __init__(self, before: Recording, after: Recording) -> None:
        self.before, self.after = Report(before), Report(after)
        self.lines = _lines(self.before, self.after)

    @property
    def peak_bytes(self) -> Amount:
        """Most bytes alive at once."""
        return Amount(self.before.peak_bytes, self.after.peak_bytes)

    @property
    def end_bytes(self) -> Amount:
        """Bytes alive at the end."""
        return Amount(self.before.end_bytes, self.after.end_bytes)

    @property
    def total_bytes(self) -> Amount:
        """Bytes handed out in all."""
        return Amount(self.before.total_bytes, self.after.total_bytes)

    def summary(self) -> str:
        """A page of text: the three figures, then the lines that changed most in each."""
        head = [
            f"before    {self.before.recording.title or 'memory recording'}",
            f"after     {self.after.recording.title or 'memory recording'}",
            f"peak      {_change(self.peak_bytes)}",
            f"at end    {_change(self.end_bytes)}",
            f"in all    {_change(self.total_bytes)}",
        ]
        parts = [
            "\n".join(head),
            self._table("at the peak, by source line", lambda line: line.peak_bytes),
            self._table("at the end, by source line", lambda line: line.end_bytes),
            self._table("handed out in all, by source line", lambda line: line.total_bytes),
        ]
        return "\n\n".join(part for part in parts if part)

    def _table(self, title: str, amount: Callable[[Line], Amount]) -> str:
        changed = [line for line in self.lines if amount(line).change]
        if not changed:
            return ""
        changed.sort(key=lambda line: (-abs(amount(line).change), line.name))
        rows = [f"  {_change(amount(line)):<36}  {line.name}" for line in changed[:TOP]]
        if changed[TOP:]:
            rows.append(f"  and {len(changed) - TOP:,} more lines")
        return "\n".join([title, *rows])

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the lines that changed most at the peak come first."""
        return {
            "before": self.before.recording.title,
            "after": self.after.recording.title,
            "peak_bytes": self.peak_bytes._asdict(),
            "end_bytes": self.end_bytes._asdict(),
            "total_bytes": self.total_bytes._asdict(),
            "lines": [
                {
                    "name": line.name,
                    "peak_bytes": line.peak_bytes._asdict(),
                    "end_bytes": line.end_bytes._asdict(),
                    "total_bytes": line.total_bytes._asdict(),
                    "total_blocks": line.total_blocks._asdict(),
                }
                for line in self.lines
            ],
        }


def diff(before: Recording, after: Recording) -> Diff:
    """What is different in `after`."""
    return Diff(before, after)


def _lines(before: Report, after: Report) -> list[Line]:
    peak, end, total = (
        [{share.name: share for share in of(report)} for report in (before, after)]
        for of in (Report.by_location, Report.left, Report.allocated)
    )
    names = total[0].keys() | total[1].keys()
    lines = [
        Line(
            name,
            _amount(peak, name),
            _amount(end, name),
            _amount(total, name),
            Amount(*(own[name].blocks if name in own else 0 for own in total)),
        )
        for name in names
    ]
    return sorted(lines, key=lambda line: (-abs(line.peak_bytes.change), line.name))


def _amount(shares: list[dict[str, Share]], name: str) -> Amount:
    return Amount(*(own[name].bytes if name in own else 0 for own in shares))


def _change(amount: Amount) -> str:
    """ "1.2 GB → 900 MB (-300 MB)"."""
    sign = "+" if amount.change > 0 else ""
    difference = "no change" if not amount.change else f"{sign}{format_bytes(amount.change)}"
    return f"{format_bytes(amount.before)} → {format_bytes(amount.after)} ({difference})"
