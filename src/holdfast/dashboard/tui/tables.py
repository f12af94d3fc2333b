"""Tables of one process: devices, links, pools, models, tags, holders, leaks.

Cells are text, never markup; numbers are right-aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.base.units import format_seconds
from holdfast.dashboard.snapshot.snapshot import (
    Holder,
    LeakFound,
    LeakState,
    ModelUse,
    PoolUse,
    Process,
)
from holdfast.dashboard.tui import words
from holdfast.dashboard.tui.session import Watched


@dataclass(frozen=True, slots=True)
class Sheet:
    """Headings and rows. A heading that begins with "<" is left-aligned."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...] = ()  # a key for each row, if rows can be selected
    empty: str = ""  # text without rows

    @property
    def titles(self) -> list[Text]:
        """The headings."""
        return self._texts([heading.removeprefix("<") for heading in self.headings])

    @property
    def cells(self) -> list[list[Text]]:
        """The rows."""
        return [self._texts(map(words.plain, row)) for row in self.rows]

    def _texts(self, row: Iterable[str]) -> list[Text]:
        return [
            Text(text, justify="left" if heading.startswith("<") else "right")
            for heading, text in zip(self.headings, row, strict=True)
        ]

    def table(self, title: str | None = None) -> Table:
        """As a Rich table."""
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            pad_edge=False,
        )
        for text in self.titles:
            justify = text.justify or "left"
            table.add_column(text, justify=justify, no_wrap=True, overflow="ellipsis")
        for row in self.cells:
            table.add_row(*row)
        return table


Columns = dict[str, Callable[[Any], str]]  # by heading


def _sheet(found: Iterable[Any], columns: Columns, empty: str, keys: Iterable[str] = ()) -> Sheet:
    rows = tuple(tuple(cell(one) for cell in columns.values()) for one in found)
    return Sheet(tuple(columns), rows, tuple(keys), empty)


def _size(field: str) -> Callable[[Any], str]:
    return lambda one: words.size(getattr(one, field))


def devices(process: Process) -> Sheet:
    """Its devices, and what others use of them."""
    columns: Columns = {
        "<device": lambda one: one.name,
        "allocated": _size("allocated_bytes"),
        "reserved": _size("reserved_bytes"),
        "used by all": _size("used_bytes"),
        "of": _size("total_bytes"),
        "full": lambda one: words.percent(_share(one.used_bytes, one.total_bytes)),
    }
    return _sheet(process.devices, columns, "It uses no device.")


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def links(one: Watched) -> Sheet:
    """Its links, with current transfer rates."""
    now = {link.device: one.link_gb_s(link.device) for link in one.process.links}
    columns: Columns = {
        "<link": lambda link: f"host to {link.device}",
        "sent so far": _size("copied_bytes"),
        "GB/s now": lambda link: words.rate(now[link.device]),
        "GB/s at most": lambda link: words.rate(link.bandwidth_gb_s),
        "used": lambda link: words.percent(_share(now[link.device], link.bandwidth_gb_s)),
    }
    return _sheet(one.process.links, columns, "It has sent no weights to a device.")


_POOLS: Columns = {
    "<pool": lambda one: one.name,
    "allocated": _size("allocated_bytes"),
    "reserved": _size("reserved_bytes"),
    "cached": _size("cached_bytes"),
    "peak": _size("peak_bytes"),
    "hits": lambda one: words.percent(words.hit_rate(one)),
    "unused": lambda one: words.percent(words.fragmentation(one)),
    "blocks": lambda one: str(one.blocks),
    "<device": lambda one: one.device,
}
_MODELS: Columns = {
    "<model": lambda one: one.name,
    "<now": lambda one: "runs" if one.running else "rests",
    "weights": _size("weight_bytes"),
    "resident": _size("resident_bytes"),
    "streamed": _size("streamed_bytes"),
    "budget": lambda one: _budget(one),
    "a pass": lambda one: (
        words.NOTHING if one.predicted_ms is None else f"{one.predicted_ms:.1f} ms"
    ),
    "passes": lambda one: str(one.passes),
    "<device": lambda one: one.device,
}
_TAGS: Columns = {
    "<tag": lambda one: one.tag,
    "in use": _size("current_bytes"),
    "peak": _size("peak_bytes"),
}
_HOLDERS: Columns = {
    "size": _size("nbytes"),
    "<device": lambda one: one.device,
    "<tag": lambda one: one.tag,
    "<asked for at": lambda one: one.location,
}
_LEAKS: Columns = {
    "size": _size("nbytes"),
    "<device": lambda one: one.device,
    "<tag": lambda one: one.tag,
    "age": lambda one: words.seconds(one.age_s),
    "<asked for at": lambda one: one.location,
    "<held by": lambda one: "; ".join(one.referrers) or "nobody that Python knows",
}


def pools(found: Sequence[PoolUse]) -> Sheet:
    """Memory pools."""
    return _sheet(found, _POOLS, "It has no memory pool.")


def models(found: Sequence[ModelUse]) -> Sheet:
    """Models, resident and streamed."""
    return _sheet(found, _MODELS, "It has no model loaded.", (one.id for one in found))


def _budget(one: ModelUse) -> str:
    size = "none" if one.budget_bytes is None else words.size(one.budget_bytes)
    return size if one.adjustable else f"{size}, fixed"


def tags(process: Process) -> Sheet:
    """Its memory by tag."""
    return _sheet(process.tags, _TAGS, "It has tagged no memory (holdfast.memory.tag).")


def holders(found: Sequence[Holder]) -> Sheet:
    """The largest blocks in use."""
    return _sheet(found, _HOLDERS, "No block is in use.")


def leaks(found: Sequence[LeakFound]) -> Sheet:
    """Leaked blocks."""
    return _sheet(found, _LEAKS, "No leak was found.")


def leak_sentence(state: LeakState, now_s: float) -> str:
    """The result of the last leak search as a sentence."""
    if not state.debugging:
        return "Leaks cannot be found: blocks are not being recorded."
    if state.count is None or state.checked_s is None:
        return "Blocks are being recorded; leaks were not looked for yet."
    ago = format_seconds(max(now_s - state.checked_s, 0.0))
    if not state.count:
        return f"No leak was found {ago} ago."
    blocks = "1 block" if state.count == 1 else f"{state.count} blocks"
    return f"{blocks} leaked, {words.size(state.total_bytes)} together, by a look {ago} ago."


def run_lines(process: Process, width: int, now_s: float) -> list[Text]:
    """The current run."""
    run = process.run
    if run is None:
        return [Text("No run is under way.", style=words.SOFT)]
    share = words.progress(run)
    done = f"{run.done} of {run.total}" if run.total else str(run.done)
    first = Text(f"{words.plain(run.model)}: ", style="bold")
    first.append(words.STAGES[run.stage], style="not bold")
    if run.label:
        first.append(f" {words.plain(run.label)}", style="not bold")
    second = words.bar(share, max(min(width - 58, 60), 10), words.CALM)
    left = f", {words.seconds(run.left_s)} left" if run.left_s is not None else ""
    second.append(
        f" {done}, {words.seconds(run.stage_s)} in this stage{left}; "
        f"began {words.seconds(max(now_s - run.began_s, 0.0))} ago"
    )
    lines = [first, second]
    if run.prompt:
        lines.append(Text(f"“{words.short(run.prompt, max(width - 2, 10))}”", style="italic"))
    return lines
