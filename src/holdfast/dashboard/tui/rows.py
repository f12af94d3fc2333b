"""The table of processes: columns, cells, sorting. The pid breaks ties, so sorting is stable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from holdfast.dashboard.snapshot.snapshot import Process
from holdfast.dashboard.tui import words
from holdfast.dashboard.tui.session import Watched


@dataclass(frozen=True, slots=True)
class Column:
    """A column: heading, minimum width and sort key."""

    heading: str
    width: int
    value: Callable[[Watched], Any]  # None goes last
    high_first: bool = True
    right: bool = True


def device_bytes(process: Process) -> int | None:
    """Memory of a process on its devices; None without devices."""
    return sum(one.reserved_bytes for one in process.devices) if process.devices else None


def model(process: Process) -> str | None:
    """The model of the current run, or the largest loaded one."""
    if process.run is not None and process.run.model:
        return process.run.model
    return process.models[0].name if process.models else None


def _left_s(one: Watched) -> float | None:
    return one.process.run.left_s if one.process.run else None


COLUMNS: dict[str, Column] = {
    "pid": Column("PID", 7, lambda one: one.process.pid, high_first=False),
    "name": Column("PROCESS", 12, lambda one: one.process.name, high_first=False, right=False),
    "rss": Column("RSS", 7, lambda one: one.process.rss_bytes),
    "device": Column("DEVICE", 7, lambda one: device_bytes(one.process)),
    "model": Column("MODEL", 9, lambda one: model(one.process), high_first=False, right=False),
    "left": Column("STAGE", 15, _left_s, high_first=False, right=False),
    "link": Column("GB/s", 5, lambda one: one.link_gb_s()),
}
GROWS = {"name": 3, "model": 2, "left": 3}  # shares of the remaining width


def sort_processes(watched: Iterable[Watched], by: str, turned: bool = False) -> list[Watched]:
    """Sort by a column, reversed if `turned`. Ended processes come last."""
    column = COLUMNS[by]
    rows = sorted(watched, key=lambda one: one.process.pid)
    known = [one for one in rows if column.value(one) is not None]
    known.sort(key=column.value, reverse=column.high_first != turned)
    rows = [*known, *(one for one in rows if column.value(one) is None)]
    return sorted(rows, key=lambda one: one.state == "ended")


def widths(room: int, between: int = 2) -> dict[str, int]:
    """Width of each column for a table of `room` characters."""
    found = {name: column.width for name, column in COLUMNS.items()}
    rest = max(room - sum(found.values()) - between * len(found), 0)
    parts = sum(GROWS.values())
    for name, part in GROWS.items():
        found[name] += rest * part // parts
    return found


def cells(one: Watched, width: dict[str, int]) -> list[Text]:
    """The cells of a row, cut to the widths of the columns."""
    process = one.process
    texts = {
        "pid": Text(str(process.pid)),
        "name": Text(words.short(process.name, width["name"])),
        "rss": Text(words.size(process.rss_bytes)),
        "device": Text(words.size(device_bytes(process))),
        "model": Text(words.short(model(process) or words.NOTHING, width["model"])),
        "left": _stage(one, width["left"]),
        "link": Text(words.rate(one.link_gb_s())),
    }
    for name, text in texts.items():
        text.justify = "right" if COLUMNS[name].right else "left"
        if one.state == "ended":
            text.stylize("dim")
    return list(texts.values())


def _stage(one: Watched, width: int) -> Text:
    if one.state == "ended":
        return Text("ended")
    if one.state == "silent":
        return Text("does not answer"[:width], style=words.WARM)
    run = one.process.run
    if run is None:
        return Text("computes") if one.computes else Text("rests", style=words.SOFT)
    return words.stage(run, width)


def headings(by: str, turned: bool) -> Sequence[Text]:
    """The headings, with an arrow at the sorted column."""
    found = []
    for name, column in COLUMNS.items():
        arrow = ("▼" if column.high_first != turned else "▲") if name == by else ""
        justify = "right" if column.right else "left"
        found.append(Text(column.heading + arrow, justify=justify))
    return found
