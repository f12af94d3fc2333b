"""Tables of one process: devices, links, pools, models, tags, holders, leaks.

Cells are text, never markup; numbers are right-aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        return [self._text(heading, heading.removeprefix("<")) for heading in self.headings]

    @property
    def cells(self) -> list[list[Text]]:
        """The rows."""
        return [
            [self._text(h, words.plain(cell)) for h, cell in zip(self.headings, row, strict=True)]
            for row in self.rows
        ]

    def _text(self, heading: str, text: str) -> Text:
        return Text(text, justify="left" if heading.startswith("<") else "right")

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
        for heading, title_text in zip(self.headings, self.titles, strict=True):
            left = heading.startswith("<")
            table.add_column(
                title_text, justify="left" if left else "right", no_wrap=True, overflow="ellipsis"
            )
        for row in self.cells:
            table.add_row(*row)
        return table


def devices(process: Process) -> Sheet:
    """Its devices, and what others use of them."""
    return Sheet(
        ("<device", "allocated", "reserved", "used by all", "of", "full"),
        tuple(
            (
                one.name,
                words.size(one.allocated_bytes),
                words.size(one.reserved_bytes),
                words.size(one.used_bytes),
                words.size(one.total_bytes),
                words.percent(
                    one.used_bytes / one.total_bytes
                    if one.used_bytes is not None and one.total_bytes
                    else None
                ),
            )
            for one in process.devices
        ),
        empty="It uses no device.",
    )


def links(one: Watched) -> Sheet:
    """Its links, with current transfer rates."""
    rows = []
    for link in one.process.links:
        now, most = one.link_gb_s(link.device), link.bandwidth_gb_s
        share = now / most if now is not None and most else None
        cells = (words.size(link.copied_bytes), words.rate(now), words.rate(most))
        rows.append((f"host to {link.device}", *cells, words.percent(share)))
    return Sheet(
        ("<link", "sent so far", "GB/s now", "GB/s at most", "used"),
        tuple(rows),
        empty="It has sent no weights to a device.",
    )


def pools(found: Sequence[PoolUse]) -> Sheet:
    """Memory pools."""
    return Sheet(
        (
            "<pool",
            "allocated",
            "reserved",
            "cached",
            "peak",
            "hits",
            "unused",
            "blocks",
            "<device",
        ),
        tuple(
            (
                one.name,
                words.size(one.allocated_bytes),
                words.size(one.reserved_bytes),
                words.size(one.cached_bytes),
                words.size(one.peak_bytes),
                words.percent(words.hit_rate(one)),
                words.percent(words.fragmentation(one)),
                str(one.blocks),
                one.device,
            )
            for one in found
        ),
        empty="It has no memory pool.",
    )


def models(found: Sequence[ModelUse]) -> Sheet:
    """Models, resident and streamed."""
    return Sheet(
        (
            "<model",
            "<now",
            "weights",
            "resident",
            "streamed",
            "budget",
            "a pass",
            "passes",
            "<device",
        ),
        tuple(
            (
                one.name,
                "runs" if one.running else "rests",
                words.size(one.weight_bytes),
                words.size(one.resident_bytes),
                words.size(one.streamed_bytes),
                _budget(one),
                words.NOTHING if one.predicted_ms is None else f"{one.predicted_ms:.1f} ms",
                str(one.passes),
                one.device,
            )
            for one in found
        ),
        keys=tuple(one.id for one in found),
        empty="It has no model loaded.",
    )


def _budget(one: ModelUse) -> str:
    size = "none" if one.budget_bytes is None else words.size(one.budget_bytes)
    return size if one.adjustable else f"{size}, fixed"


def tags(process: Process) -> Sheet:
    """Its memory by tag."""
    return Sheet(
        ("<tag", "in use", "peak"),
        tuple(
            (one.tag, words.size(one.current_bytes), words.size(one.peak_bytes))
            for one in process.tags
        ),
        empty="It has tagged no memory (holdfast.memory.tag).",
    )


def holders(found: Sequence[Holder]) -> Sheet:
    """The largest blocks in use."""
    return Sheet(
        ("size", "<device", "<tag", "<asked for at"),
        tuple((words.size(one.nbytes), one.device, one.tag, one.location) for one in found),
        empty="No block is in use.",
    )


def leaks(found: Sequence[LeakFound]) -> Sheet:
    """Leaked blocks."""
    return Sheet(
        ("size", "<device", "<tag", "age", "<asked for at", "<held by"),
        tuple(
            (
                words.size(one.nbytes),
                one.device,
                one.tag,
                words.seconds(one.age_s),
                one.location,
                "; ".join(one.referrers) or "nobody that Python knows",
            )
            for one in found
        ),
        empty="No leak was found.",
    )


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
