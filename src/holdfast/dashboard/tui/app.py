"""The screen of `holdfast top`: layout, sorting, and the keys that change what is shown.

Nothing here waits for a process; threads do. The terminal is restored when `run` returns, also
after Ctrl-C, SIGTERM and errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Footer, Static

from holdfast.dashboard.ipc.watching import Watches
from holdfast.dashboard.snapshot.snapshot import Snapshot
from holdfast.dashboard.tui import dialogs, rows, words
from holdfast.dashboard.tui.acts import ActingApp
from holdfast.dashboard.tui.details import TABS, Details
from holdfast.dashboard.tui.looking import Looker
from holdfast.dashboard.tui.machine import curves, machine_lines
from holdfast.dashboard.tui.once import NOBODY
from holdfast.dashboard.tui.table import SteadyTable, SteadyText

INTERRUPTED, ENDED = 130, 143  # exit statuses after Ctrl-C and SIGTERM
STALE_S = 3.0  # the title warns when the last snapshot is older


class Looked(Message):
    """A snapshot was taken, or failed."""

    def __init__(self, found: Snapshot | Exception) -> None:
        super().__init__()
        self.found = found


class TopApp(ActingApp):
    """The screen; `run()` returns the exit status."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; text-style: bold; }
    #machine { height: auto; max-height: 40%; padding: 0 1; }
    #processes { height: auto; max-height: 35%; min-height: 3; }
    #nobody { height: auto; padding: 1; color: $text-muted; }
    Toast { width: 90; max-width: 94%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("S,shift+s", "turn", "Turn", show=False),
        Binding("p,space", "pause", "Pause", key_display="p"),
        Binding("f", "free", "Free"),
        Binding("b", "budget", "Budget"),
        Binding("h", "holders", "Holders"),
        Binding("l", "leaks", "Leaks"),
        Binding("d", "debugging", "Record", show=False),
        Binding("i", "interrupt", "Stop"),
        Binding("w", "save", "Save"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("t", "theme", "Theme", show=False),
        Binding("escape", "outside", "Back", show=False),
        Binding("ctrl+c", "ctrl_c", "Quit", show=False, priority=True),
        *(Binding(str(at), f"tab('{name}')", show=False) for at, name in enumerate(TABS, 1)),
    ]

    def __init__(
        self, watcher: Watches, *, interval_s: float = 0.5, sort: str = "pid", light: bool = False
    ) -> None:
        super().__init__(watcher)
        self.sort_key, self.turned, self.paused = sort, False, False
        self._light = light
        self._problem: str | None = None
        self._looked_at = time.monotonic()
        self._looker = Looker(watcher.look, interval_s, self._tell_look)

    # ---- beginning and end

    def compose(self) -> ComposeResult:
        """Title, machine, processes, details, keys."""
        yield Static(id="title", markup=False)
        yield SteadyText("machine")
        yield Static(NOBODY, id="nobody", markup=False)
        yield SteadyTable("processes")
        yield Details()
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Start the threads."""
        self.theme = "textual-light" if self._light else "textual-dark"
        self.title = "holdfast top"
        loop = asyncio.get_running_loop()
        for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, ENDED)):
            # Not on Windows, and not where this is not the main thread.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.exit, status)
        self.query_one("#nobody").display = False
        self.query_one("#processes").focus()
        self.set_interval(1.0, self._draw_title)
        self._looker.start()

    def stop(self) -> None:
        """Stop the threads; after `run`."""
        self._looker.stop()
        self.actor.stop()

    def _tell_look(self, found: Snapshot | Exception) -> None:
        if not self.post_message(Looked(found)):  # the screen is gone
            self._looker.allow_next()

    def on_looked(self, event: Looked) -> None:
        """Add a snapshot to the session; draw it unless paused."""
        if isinstance(event.found, Snapshot):
            self.session.add(event.found)
            self._problem, self._looked_at = None, time.monotonic()
        else:
            self._problem = str(event.found).partition("\n")[0]
        self.draw()
        self._looker.allow_next()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    # ---- drawing

    def draw(self) -> None:
        """Draw everything; while paused, only the title."""
        self._draw_title()
        snapshot = self.session.snapshot
        if snapshot is None or self.paused or self.gone:
            return
        width = self.size.width - 2
        lines = [*machine_lines(snapshot.machine, width), *curves(self.session, width)]
        self.query_one("#machine", SteadyText).put(lines)
        self._draw_processes()
        self._draw_details()

    def _draw_title(self) -> None:
        if self.gone:
            return
        snapshot = self.session.snapshot
        parts = ["holdfast top"]
        if snapshot is not None:
            parts += [words.plain(snapshot.machine.host), time.strftime("%H:%M:%S")]
        parts.append("paused" if self.paused else f"every {self._looker.interval_s:g} s")
        stale_s = time.monotonic() - self._looked_at
        if self._problem is not None:
            parts.append(words.plain(self._problem))
        elif stale_s > max(STALE_S, 3 * self._looker.interval_s):
            parts.append(f"last look {words.seconds(stale_s)} ago")
        line = Text(" · ".join(parts), no_wrap=True, overflow="ellipsis")
        self.query_one("#title", Static).update(line, layout=False)

    def _draw_processes(self) -> None:
        table, nobody = self.query_one("#processes", SteadyTable), self.query_one("#nobody", Static)
        found = rows.sort_processes(self.session.watched.values(), self.sort_key, self.turned)
        nobody.display, table.display = not found, bool(found)
        width = rows.widths(self.size.width - 1)
        table.put(
            rows.headings(self.sort_key, self.turned),
            [(one.key, rows.cells(one, width)) for one in found],
            keys=list(rows.COLUMNS),
            widths=list(width.values()),
        )

    def _draw_details(self) -> None:
        snapshot = self.session.snapshot
        self.query_one(Details).show(self.chosen, snapshot.at_s if snapshot else time.time())

    @on(DataTable.RowHighlighted, "#processes")
    def _choose(self) -> None:
        self._draw_details()

    @on(DataTable.RowSelected, "#processes")
    def _enter(self) -> None:
        self.query_one(Details).enter()

    @on(DataTable.RowSelected, "#models-table")
    def _enter_model(self) -> None:
        self.action_budget()

    @on(DataTable.HeaderSelected, "#processes")
    def _sort_by(self, event: DataTable.HeaderSelected) -> None:
        name = str(event.column_key.value)
        self.turned = not self.turned if name == self.sort_key else False
        self.sort_key = name
        self._draw_processes()

    # ---- keys that change what is shown

    def action_leave(self) -> None:
        self.exit(0)

    def action_ctrl_c(self) -> None:
        """In raw mode the terminal sends Ctrl-C as a key."""
        self.exit(INTERRUPTED)

    def action_sort(self) -> None:
        names = list(rows.COLUMNS)
        self.sort_key = names[(names.index(self.sort_key) + 1) % len(names)]
        self.turned = False
        self._draw_processes()

    def action_turn(self) -> None:
        self.turned = not self.turned
        self._draw_processes()

    def action_pause(self) -> None:
        """Freeze the screen; snapshots are still recorded."""
        self.paused = not self.paused
        self.draw()

    def action_tab(self, name: str) -> None:
        self.query_one(Details).open(name)

    def action_outside(self) -> None:
        """Move the focus back to the processes."""
        self.query_one("#processes").focus()

    def action_theme(self) -> None:
        dark = self.theme == "textual-dark"
        self.theme = "textual-light" if dark else "textual-dark"

    def action_help(self) -> None:
        self.push_screen(dialogs.HelpDialog())
