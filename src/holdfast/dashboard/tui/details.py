"""The lower half of the screen: the selected process in tabs.

Holders and leaks are shown only for the process they were requested from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Static, TabbedContent, TabPane

from holdfast.base.units import format_seconds
from holdfast.dashboard.tui import charts, tables, words
from holdfast.dashboard.tui.session import Watched
from holdfast.dashboard.tui.table import SteadyTable, SteadyText

TEXTS = ("overview", "history")
TABS = ("overview", "models", "pools", "tags", "holders", "leaks", "history")
Requested = Literal["holders", "leaks"]  # tabs that are filled on request
CHART_ROWS = 4
WIDE = 140  # from this width on, the side panel is shown
SIDE = 72  # its width in characters


class Details(Horizontal):
    """Tabs of one process; wide screens show run and history beside them."""

    DEFAULT_CSS = """
    Details { height: 1fr; }
    Details > #side { width: 76; border-right: solid $primary-darken-2; padding: 0 1; }
    Details > TabbedContent { width: 1fr; }
    Details TabPane { padding: 0 1; }
    Details .empty { color: $text-muted; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__(id="details")
        self._one: Watched | None = None
        self._now_s = 0.0
        self._found: dict[Requested, tuple[str, Sequence[Any]]] = {}  # of whom

    def compose(self) -> ComposeResult:
        """The side, and a pane for each tab."""
        with VerticalScroll(id="side"):
            yield SteadyText("side-text")
        with TabbedContent(initial="overview"):
            for number, name in enumerate(TABS, 1):
                with TabPane(f"{number} {name.capitalize()}", id=name):
                    if name in TEXTS:
                        with VerticalScroll():
                            yield SteadyText(f"{name}-text")
                    else:
                        yield Static(id=f"{name}-empty", classes="empty", markup=False)
                        yield SteadyTable(f"{name}-table")

    @property
    def tab(self) -> str:
        """The tab that is open."""
        return self.query_one(TabbedContent).active

    def open(self, tab: str) -> None:
        """Show a tab."""
        self.query_one(TabbedContent).active = tab
        self.draw()

    def enter(self) -> None:
        """Focus the open tab."""
        pane = self.query_one(TabbedContent).active_pane
        for widget in pane.query("SteadyTable, VerticalScroll") if pane else ():
            if widget.focusable and widget.display:
                widget.focus()

    @property
    def chosen_model(self) -> str | None:
        """The id of the model under the cursor."""
        return self.query_one("#models-table", SteadyTable).chosen

    # ---- content

    def show(self, one: Watched | None, now_s: float) -> None:
        """Show this process, or none."""
        self._one, self._now_s = one, now_s
        self.draw()

    def fill(self, tab: Requested, key: str, found: Sequence[Any]) -> None:
        """Blocks or leaks of a process."""
        self._found[tab] = (key, found)
        self.draw()

    def _found_of(self, tab: Requested, one: Watched) -> Sequence[Any] | None:
        key, found = self._found.get(tab, ("", None))
        return found if key == one.key else None

    def draw(self) -> None:
        """Draw the open tab only."""
        drawers: dict[str, Callable[[Watched], None]] = {
            "overview": lambda one: self._write("overview", self._doing(one, self._width)),
            "models": lambda one: self._sheet("models", tables.models(one.process.models)),
            "pools": lambda one: self._sheet("pools", tables.pools(one.process.pools)),
            "tags": lambda one: self._sheet("tags", tables.tags(one.process)),
            "holders": self._draw_holders,
            "leaks": self._draw_leaks,
            "history": lambda one: self._write("history", self._curves(one, self._width)),
        }
        self._draw_side()
        if self._one is None:
            self._nobody()
        elif self.tab in drawers:
            drawers[self.tab](self._one)

    def _nobody(self) -> None:
        tab, nobody = self.tab, "No process is chosen."
        if tab in TEXTS:
            self._write(tab, [Text(nobody, style=words.SOFT)])
        elif tab:
            self._sheet(tab, tables.Sheet((), (), empty=nobody))

    def _sheet(self, tab: str, sheet: tables.Sheet, above: str = "") -> None:
        empty = self.query_one(f"#{tab}-empty", Static)
        table = self.query_one(f"#{tab}-table", SteadyTable)
        said = above or ("" if sheet.rows else sheet.empty)
        if str(empty.content) != said:
            empty.update(Text(said))
        empty.display = bool(said)
        table.display = bool(sheet.rows)
        names = sheet.keys or tuple(str(at) for at in range(len(sheet.rows)))
        table.put(sheet.titles, list(zip(names, sheet.cells, strict=True)))

    def _draw_holders(self, one: Watched) -> None:
        found = self._found_of("holders", one)
        empty = tables.Sheet((), (), empty="Press h to see the largest blocks in use.")
        self._sheet("holders", empty if found is None else tables.holders(found))

    def _draw_leaks(self, one: Watched) -> None:
        state = tables.leak_sentence(one.process.leaks, self._now_s)
        keys = ("Press d to record them from now on.", "Press l to look for leaks.")
        found = self._found_of("leaks", one)
        sheet = tables.Sheet((), ()) if found is None else tables.leaks(found)
        self._sheet("leaks", sheet, above=f"{state} {keys[one.process.leaks.debugging]}")

    # ---- tabs of text

    def _draw_side(self) -> None:
        side = self.query_one("#side")
        side.display = self.size.width >= WIDE
        if side.display:
            one = self._one
            parts = [] if one is None else [*self._doing(one, SIDE), *self._curves(one, SIDE)]
            self._write("side", parts)

    def _write(self, tab: str, parts: Sequence[RenderableType]) -> None:
        self.query_one(f"#{tab}-text", SteadyText).put(parts)

    def _doing(self, one: Watched, width: int) -> list[RenderableType]:
        process = one.process
        parts: list[RenderableType] = []
        if one.state != "alive":
            ago = format_seconds(max(self._now_s - one.seen_s, 0.0))
            said = "has ended" if one.state == "ended" else "does not answer"
            parts.append(Text(f"It {said}; this was seen {ago} ago.", style=words.WARM))
        parts += tables.run_lines(process, width, self._now_s)
        for sheet in (tables.devices(process), tables.links(one)):
            parts.append(sheet.table() if sheet.rows else Text(sheet.empty, style=words.SOFT))
        parts.append(Text(tables.leak_sentence(process.leaks, self._now_s)))
        return [*parts, Text(self._about(one), style=words.SOFT)]

    def _about(self, one: Watched) -> str:
        process = one.process
        alive = format_seconds(max(one.seen_s - process.began_s, 0.0))
        return (
            f"pid {process.pid}, for {alive}, Holdfast {words.plain(process.holdfast)}; "
            f"pinned {words.size(process.pinned_bytes)}; a look cost it {process.look_us:.0f} µs"
        )

    def _curves(self, one: Watched, width: int) -> list[Text]:
        samples, rows = one.track.samples, CHART_ROWS
        return [
            *charts.chart("RSS", samples, "ram_bytes", width, rows, words.RAM),
            *charts.chart("devices", samples, "device_bytes", width, rows, words.DEVICE),
        ]

    @property
    def _width(self) -> int:
        taken = SIDE + 4 if self.query_one("#side").display else 0
        return max(self.size.width - taken - 4, 40)
