"""Two recordings compared by source line: what grew, what shrank.

Lines are identified by file, line and function, so a line that moved counts as two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.base.units import format_bytes
from holdfast.memory.profile.recording import Recording
from holdfast.memory.profile.report import TOP, MemoryShare, Report


class Amount(NamedTuple):
    """A value before and after."""

    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


class LineDiff(NamedTuple):
    """One source line in both recordings."""

    name: str
    peak_bytes: Amount
    end_bytes: Amount
    total_bytes: Amount
    total_blocks: Amount


class Diff:
    """The differences between two recordings."""

    def __init__(self, before: Recording, after: Recording) -> None:
        self.before, self.after = Report(before), Report(after)
        self.lines = _lines(self.before, self.after)
        self.peak_bytes = Amount(self.before.peak_bytes, self.after.peak_bytes)  # alive at once
        self.end_bytes = Amount(self.before.end_bytes, self.after.end_bytes)
        self.total_bytes = Amount(self.before.total_bytes, self.after.total_bytes)  # allocated

    def summary(self) -> str:
        """A page of text: the three totals, then the lines that changed most in each."""
        head = [
            f"before    {self.before.recording.title or 'memory recording'}",
            f"after     {self.after.recording.title or 'memory recording'}",
            f"peak      {_format_change(self.peak_bytes)}",
            f"at end    {_format_change(self.end_bytes)}",
            f"in all    {_format_change(self.total_bytes)}",
        ]
        parts = [
            "\n".join(head),
            self._table("at the peak, by source line", lambda line: line.peak_bytes),
            self._table("at the end, by source line", lambda line: line.end_bytes),
            self._table("allocated in all, by source line", lambda line: line.total_bytes),
        ]
        return "\n\n".join(part for part in parts if part)

    def _table(self, title: str, amount: Callable[[LineDiff], Amount]) -> str:
        changed = [line for line in self.lines if amount(line).change]
        if not changed:
            return ""
        changed.sort(key=lambda line: (-abs(amount(line).change), line.name))
        rows = [f"  {_format_change(amount(line)):<36}  {line.name}" for line in changed[:TOP]]
        if changed[TOP:]:
            rows.append(f"  and {len(changed) - TOP:,} more lines")
        return "\n".join([title, *rows])

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; lines that changed most at the peak come first."""
        return {
            "before": self.before.recording.title,
            "after": self.after.recording.title,
            "peak_bytes": self.peak_bytes._asdict(),
            "end_bytes": self.end_bytes._asdict(),
            "total_bytes": self.total_bytes._asdict(),
            "lines": [
                {
                    name: value._asdict() if isinstance(value, Amount) else value
                    for name, value in line._asdict().items()
                }
                for line in self.lines
            ],
        }


diff = Diff


def _lines(before: Report, after: Report) -> list[LineDiff]:
    peak, end, total = (
        [{share.name: share for share in of(report)} for report in (before, after)]
        for of in (Report.by_location, Report.left_by_location, Report.allocated_by_location)
    )
    names = total[0].keys() | total[1].keys()
    lines = [
        LineDiff(
            name,
            _amount(peak, name),
            _amount(end, name),
            _amount(total, name),
            Amount(*(own[name].blocks if name in own else 0 for own in total)),
        )
        for name in names
    ]
    return sorted(lines, key=lambda line: (-abs(line.peak_bytes.change), line.name))


def _amount(shares: list[dict[str, MemoryShare]], name: str) -> Amount:
    return Amount(*(own[name].bytes if name in own else 0 for own in shares))


def _format_change(amount: Amount) -> str:
    """ "1.2 GB → 900 MB (-300 MB)"."""
    sign = "+" if amount.change > 0 else ""
    difference = "no change" if not amount.change else f"{sign}{format_bytes(amount.change)}"
    return f"{format_bytes(amount.before)} → {format_bytes(amount.after)} ({difference})"
