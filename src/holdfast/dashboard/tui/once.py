"""`holdfast top --once`: one snapshot as text, also where standard output is not a terminal.

Needs only Rich; a pipe gets plain text.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.tui import rows, tables
from holdfast.dashboard.tui.machine import machine_lines
from holdfast.dashboard.tui.session import Session, Watched

NOBODY = (
    "No process of Holdfast is running here that can be watched.\n"
    '  try: holdfast run tiny-flux --prompt "a handwritten seven", in another terminal\n'
    "A script can be watched once it has made a memory pool or manages a model."
)


def print_once(session: Session, by: str, whole: bool, console: Console) -> None:
    """Print a session; `whole` adds all details of each process."""
    snapshot = session.snapshot
    if snapshot is None:
        return
    width = console.width
    console.print(Text(snapshot.machine.host, style="bold"))
    for line in machine_lines(snapshot.machine, width):
        console.print(line, highlight=False)
    if not snapshot.processes:
        console.print(f"\n{NOBODY}", markup=False, highlight=False, soft_wrap=True)
        return
    watched = rows.sort_processes(session.watched.values(), by)
    console.print(_table(watched, by, width), highlight=False)
    for one in watched if whole else ():
        for part in _whole(one, snapshot, width):
            console.print(part, highlight=False)


def _table(watched: list[Watched], by: str, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    wide = rows.widths(width)
    for heading, name in zip(rows.headings(by, False), rows.COLUMNS, strict=True):
        right = rows.COLUMNS[name].right
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for one in watched:
        table.add_row(*rows.cells(one, wide))
    return table


def _whole(one: Watched, snapshot: Snapshot, width: int) -> list[RenderableType]:
    process = one.process
    found: list[RenderableType] = [*tables.run_lines(process, width, snapshot.at_s), Text()]
    sheets = {
        "devices": tables.devices(process),
        "links": tables.links(one),
        "models": tables.models(process.models),
        "pools": tables.pools(process.pools),
        "tags": tables.tags(process),
    }
    found += [sheet.table(title) for title, sheet in sheets.items() if sheet.rows]
    return [*found, Text(tables.leak_sentence(process.leaks, snapshot.at_s))]
