"""The HTML chart of a residency recording: passes, stalls, the link, every weight over time.

This packs the data and the tables; assets/chart.js draws. The page uses no network (its content
security policy forbids it), and texts of entries are data, never markup. 50,000 entries take about
a second.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base import html
from holdfast.base.html import Section, escape
from holdfast.base.units import format_bytes
from holdfast.residency.recording.journal import Entry
from holdfast.residency.recording.summary import (
    TOP,
    Summary,
    SummaryRow,
    explain_stalls,
    find_layer,
    find_span,
    format_ms,
    group_by_kind,
    summarize,
)

ASSETS = Path(__file__).with_name("assets")
LONGEST = 20  # stalls in the table
TITLE = "residency"

Row = tuple[str, str]  # module and name


@dataclass(frozen=True, slots=True)
class Stay:
    """The time a weight was on the device, in milliseconds: kept, or streamed for its use."""

    module: str
    name: str
    nbytes: int
    start_ms: float
    end_ms: float
    kept: bool


def render_fragment(entries: Iterable[Entry], title: str = TITLE, order: Sequence[Row] = ()) -> str:
    """Render the chart as an HTML fragment with its style and script.

    `order` is (module, weight) by first use; without it weights are listed in the order they moved.
    """
    made = make_section(entries, title, order)
    return f"<style>{made.style}</style>\n{made.body}\n<script>{made.script}</script>\n"


def render_page(entries: Iterable[Entry], title: str = TITLE, order: Sequence[Row] = ()) -> str:
    """Render the chart as an HTML page."""
    made = make_section(entries, title, order)
    body = f'<div class="hf-alone">\n{made.body}\n</div>'
    return html.page(f"{title} · Holdfast residency", body, made.style, made.script)


def make_section(
    entries: Iterable[Entry], title: str = TITLE, order: Sequence[Row] = ()
) -> Section:
    """Make the chart a section of a memory report."""
    entries = list(entries)
    found = summarize(entries)
    stalls = sorted(explain_stalls(entries), key=lambda e: e.start_ms - e.end_ms)[:LONGEST]
    data = json.dumps(_data(entries, order), separators=(",", ":")).encode()
    body = _BODY.format(
        title=escape(title),
        tiles=_tiles(found),
        stalls=_stall_table(stalls),
        reasons=_share_table("Stalls by reason", found.stalls_by_reason, found.stall_ms),
        layers=_share_table("Stalls by layer", found.stalls_by_layer, found.stall_ms),
        evictions=_eviction_table(found.evictions_by_reason),
        text=escape(str(found)),
        data=base64.b64encode(zlib.compress(data, 6)).decode(),
    )
    style = (ASSETS / "chart.css").read_text(encoding="utf-8")
    return Section(TITLE, body, style, html.read_script(ASSETS / "chart.js"))


# ---- the data of the chart


def find_stays(entries: Iterable[Entry]) -> list[Stay]:
    """When each weight was on the device, by arrival."""
    entries = list(entries)
    _, end_ms = find_span(entries)
    found: list[Stay] = []
    open_: dict[Row, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.start_ms):
        key = (entry.module, entry.name)
        if entry.kind == "stay":
            found.append(_stay(entry, entry.start_ms, entry.end_ms, kept=False))
        elif entry.kind == "keep":
            open_.setdefault(key, entry)
        elif entry.kind == "evict" and key in open_:
            came = open_.pop(key)
            found.append(_stay(came, came.start_ms, entry.start_ms, kept=True))
    found += [_stay(entry, entry.start_ms, end_ms, kept=True) for entry in open_.values()]
    return sorted(found, key=lambda stay: stay.start_ms)


def _stay(entry: Entry, start_ms: float, end_ms: float, *, kept: bool) -> Stay:
    return Stay(entry.module, entry.name, entry.nbytes, start_ms, end_ms, kept)


def _data(entries: Sequence[Entry], order: Sequence[Row]) -> dict[str, Any]:
    """Columns by kind. Times are integer ns since the first entry, as steps and lengths."""
    kinds = group_by_kind(entries)
    kinds["stall"] = explain_stalls(entries)
    rows = _rows(entries, order)
    number = {key: i for i, key in enumerate(rows)}
    layers: dict[str, int] = {}
    texts: dict[str, int] = {}
    start_ms, end_ms = find_span(entries)

    def columns(found: Sequence[Any], *fields: str) -> dict[str, list[Any]]:
        starts = [round((e.start_ms - start_ms) * 1e6) for e in found]
        ends = [round((e.end_ms - start_ms) * 1e6) for e in found]
        return {
            "step": [b - a for a, b in zip([0, *starts], starts, strict=False)],
            "length": [b - a for a, b in zip(starts, ends, strict=True)],
            "row": [number.get((e.module, e.name), -1) for e in found],
            **{field: [value(getattr(e, field)) for e in found] for field in fields},
        }

    def value(found: str | int) -> int:
        return texts.setdefault(found, len(texts)) if isinstance(found, str) else int(found)

    marks = sorted((*kinds["evict"], *kinds["demand"]), key=lambda e: e.start_ms)
    evictions = [int(e.kind == "evict") for e in marks]
    return {
        "from_ns": round(start_ms * 1e6),
        "length_ns": max(1, round((end_ms - start_ms) * 1e6)),
        "rows": [
            [module, name, nbytes, layers.setdefault(f"{module}\0{find_layer(name)}", len(layers))]
            for (module, name), nbytes in rows.items()
        ],
        "copy": columns(kinds["copy"], "nbytes"),
        "decode": columns(kinds["decode"], "nbytes"),
        "stay": columns(find_stays(entries), "nbytes", "kept"),
        "stall": columns(kinds["stall"], "name", "reason"),
        "pass": columns(kinds["pass"], "name", "reason", "module"),
        "mark": columns(marks, "nbytes", "name", "reason") | {"evict": evictions},
        "texts": list(texts),
    }


def _rows(entries: Sequence[Entry], order: Sequence[Row]) -> dict[Row, int]:
    """Every weight that moved or stayed, with its largest size, in the order of use."""
    moved: dict[Row, int] = {}
    for entry in sorted(entries, key=lambda e: e.start_ms):
        if entry.kind in ("copy", "decode", "stay", "keep"):
            key = (entry.module, entry.name)
            moved[key] = max(entry.nbytes, moved.get(key, 0))
    known = [(module, name) for module, name in order if (module, name) in moved]
    return {key: moved[key] for key in dict.fromkeys([*known, *moved])}


# ---- texts and tables


def _tiles(found: Summary) -> str:
    rate = found.link_gb_s
    tiles = {
        "recorded": format_ms(found.span_ms),
        "passes": f"{found.passes:,}",
        "link busy": f"{100 * found.link_share:.0f} %",
        "over the link": format_bytes(found.link_bytes),
        "while busy": "–" if rate is None else f"{rate:.1f} GB/s",
        "of the passes stalled": f"{100 * found.stall_share:.0f} %",
        "evictions": f"{found.evictions:,}",
        "loads on demand": f"{found.demand_loads:,}",
    }
    return html.tiles(tiles)


def _stall_table(stalls: Sequence[Entry]) -> str:
    if not stalls:
        return '<p class="hf-none">There were no stalls.</p>'
    rows = "".join(
        f'<tr><th scope="row"><button type="button" data-start="{round(e.start_ms * 1e6)}" '
        f'data-end="{round(e.end_ms * 1e6)}">{escape(e.name)}</button></th>'
        f"<td>{format_ms(e.start_ms)}</td><td>{format_ms(e.end_ms - e.start_ms)}</td>"
        f'<td class="hf-why">{escape(e.reason)}</td></tr>'
        for e in stalls
    )
    return (
        '<table class="hf-stalls"><caption>The longest stalls</caption><thead><tr>'
        '<th scope="col">waited for</th><th scope="col">at</th><th scope="col">lasted</th>'
        f'<th scope="col" class="hf-why">why</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _share_table(title: str, shares: Sequence[SummaryRow], whole_ms: float) -> str:
    rows = [(s.name, format_ms(s.ms), s.ms / (whole_ms or 1.0)) for s in shares[:TOP]]
    return _bars(title, rows)


def _eviction_table(shares: Sequence[SummaryRow]) -> str:
    most = max((s.count for s in shares), default=1)
    rows = [
        (s.name, f"{s.count:,} ×, {format_bytes(s.nbytes)} in all", s.count / most)
        for s in shares[:TOP]
    ]
    return _bars("Evictions by reason", rows)


def _bars(title: str, rows: Sequence[tuple[str, str, float]]) -> str:
    """A table with a bar in each row; "" without rows."""
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td><td class="hf-bar">'
        f"{html.bar(share)}</td></tr>"
        for name, value, share in rows
    )
    return f"<table><caption>{title}</caption><tbody>{cells}</tbody></table>" if rows else ""


_BODY = """<div class="hf-residency">
<header><h2>{title}</h2>{tiles}</header>
<div class="hf-card">
<div class="hf-tools"><ul class="hf-legend" aria-label="Colours"></ul>
<div class="hf-zoom" role="group" aria-label="Zoom"><button type="button" data-do="out"
 aria-label="Zoom out">−</button><button type="button" data-do="in" aria-label="Zoom in">+</button
><button type="button" data-do="all">all</button><button type="button" data-do="next"
 title="the next stall">next stall</button></div></div>
<div class="hf-plot"><canvas class="hf-canvas" tabindex="0" role="img"
 aria-label="Passes, stalls, the link and the weights on the device over time; the tables below
 have the same as text"></canvas><canvas class="hf-over" aria-hidden="true"></canvas></div>
<p class="hf-hint">Wheel or <kbd>+</kbd> <kbd>−</kbd> zooms, drag or <kbd>←</kbd> <kbd>→</kbd>
 moves, <kbd>N</kbd> goes to the next stall, double click or <kbd>Esc</kbd> shows all.</p>
<p class="hf-status" role="status" aria-live="polite"></p>
<noscript><p>The picture needs JavaScript, which is switched off; the tables do not.</p></noscript>
</div>
<div class="hf-tables"><div class="hf-card hf-wide">{stalls}</div>
<div class="hf-card hf-side">{reasons}{evictions}{layers}</div></div>
<details class="hf-words"><summary>As text</summary><pre>{text}</pre></details>
<div class="hf-tip" hidden></div>
<script type="application/octet-stream" class="hf-data">{data}</script>
</div>"""
