"""A recording of residency as a picture: passes, stalls, the link, and which weight was where when.

Covers: packing entries for the picture, the tables below it, a piece of HTML and a whole page.
Leaves to others: drawing and moving about (assets/chart.js), numbers (summary), files (recorded).
Promise: needs no network and may not use any; every text of the entries is data, never markup;
50,000 entries are packed in about a second.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.units import format_bytes
from holdfast.memory.page import Section, escaped, policy
from holdfast.residency.recording.journal import THERE_BEFORE, Entry
from holdfast.residency.recording.summary import (
    TOP,
    Share,
    Summary,
    by_kind,
    explained,
    format_ms,
    layer,
    span,
    summary,
)

__all__ = ["Stay", "Summary", "chart", "page", "section", "stays", "summary"]

ASSETS = Path(__file__).with_name("assets")
LONGEST = 20  # stalls in the table
TITLE = "residency"

Row = tuple[str, str]  # module and name


@dataclass(frozen=True, slots=True)
class Stay:
    """Weights on the device, in milliseconds: kept, or streamed for the time of their use."""

    module: str
    name: str
    nbytes: int
    start_ms: float
    end_ms: float
    kept: bool


def chart(
    entries: Iterable[Entry],
    kept: Mapping[str, int] | None = None,
    title: str = TITLE,
    order: Sequence[Row] = (),
) -> str:
    """The picture as a piece of HTML, with its style and its script.

    `kept` are the weights that were there before the recording began, with their bytes. `order` is
    (module, weight) from first use to last; without it weights come in the order they moved.
    """
    made = section(entries, kept, title, order)
    return f"<style>{made.style}</style>\n{made.body}\n<script>{made.script}</script>\n"


def page(
    entries: Iterable[Entry],
    kept: Mapping[str, int] | None = None,
    title: str = TITLE,
    order: Sequence[Row] = (),
) -> str:
    """The picture as a page of its own."""
    made = section(entries, kept, title, order)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{policy([made.style], [made.script])}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)} · Holdfast residency</title>\n<style>{made.style}</style>\n"
        f'</head>\n<body class="hf-alone">\n{made.body}\n<script>{made.script}</script>\n'
        "</body>\n</html>\n"
    )


def section(
    entries: Iterable[Entry],
    kept: Mapping[str, int] | None = None,
    title: str = TITLE,
    order: Sequence[Row] = (),
) -> Section:
    """The picture as a section of a report of memory."""
    there = [Entry("keep", n, b, 0.0, 0.0, THERE_BEFORE) for n, b in (kept or {}).items()]
    entries = [*there, *entries]
    found = summary(entries)
    stalls = sorted(explained(entries), key=lambda e: e.start_ms - e.end_ms)[:LONGEST]
    data = json.dumps(_data(entries, order), separators=(",", ":")).encode()
    body = _BODY.format(
        title=escaped(title),
        tiles=_tiles(found),
        stalls=_stall_table(stalls),
        reasons=_share_table("Why computing stood still", found.stalls_by_reason, found.stall_ms),
        layers=_share_table("Layers it waited for", found.stalls_by_layer, found.stall_ms),
        evictions=_eviction_table(found.evictions_by_reason),
        words=escaped(str(found)),
        data=base64.b64encode(zlib.compress(data, 6)).decode(),
    )
    return Section(TITLE, body, _asset("chart.css"), _asset("chart.js"))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


# ---- what the picture needs


def stays(entries: Iterable[Entry]) -> list[Stay]:
    """When which weights were on the device, in order of their arrival."""
    entries = list(entries)
    _, end_ms = span(entries)
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
    """Columns by kind; times are whole nanoseconds since the first entry, as steps and lengths."""
    kinds = by_kind(entries)
    kinds["stall"] = explained(entries)
    there = stays(entries)
    rows = _rows(entries, order)
    number = {key: i for i, key in enumerate(rows)}
    layers: dict[str, int] = {}
    words: dict[str, int] = {}
    start_ms, end_ms = span(entries)

    def columns(found: Sequence[Any], **more: list[Any]) -> dict[str, list[Any]]:
        starts = [round((e.start_ms - start_ms) * 1e6) for e in found]
        ends = [round((e.end_ms - start_ms) * 1e6) for e in found]
        steps = [b - a for a, b in zip([0, *starts], starts, strict=False)]
        lengths = [b - a for a, b in zip(starts, ends, strict=True)]
        row = [number.get((e.module, e.name), -1) for e in found]
        return {"step": steps, "length": lengths, "row": row, **more}

    def said(found: Sequence[Entry], what: str) -> list[int]:
        return [words.setdefault(getattr(e, what), len(words)) for e in found]

    marks = sorted((*kinds["evict"], *kinds["demand"]), key=lambda e: e.start_ms)
    return {
        "from_ns": round(start_ms * 1e6),
        "length_ns": max(1, round((end_ms - start_ms) * 1e6)),
        "rows": [
            [module, name, nbytes, layers.setdefault(f"{module}\0{layer(name)}", len(layers))]
            for (module, name), nbytes in rows.items()
        ],
        "copy": columns(kinds["copy"], nbytes=[e.nbytes for e in kinds["copy"]]),
        "decode": columns(kinds["decode"], nbytes=[e.nbytes for e in kinds["decode"]]),
        "stay": columns(there, nbytes=[s.nbytes for s in there], kept=[int(s.kept) for s in there]),
        "stall": columns(
            kinds["stall"], name=said(kinds["stall"], "name"), reason=said(kinds["stall"], "reason")
        ),
        "pass": columns(
            kinds["pass"],
            name=said(kinds["pass"], "name"),
            reason=said(kinds["pass"], "reason"),
            module=said(kinds["pass"], "module"),
        ),
        "mark": columns(
            marks,
            nbytes=[e.nbytes for e in marks],
            evict=[int(e.kind == "evict") for e in marks],
            name=said(marks, "name"),
            reason=said(marks, "reason"),
        ),
        "words": list(words),
    }


def _rows(entries: Sequence[Entry], order: Sequence[Row]) -> dict[Row, int]:
    """Every weight that moved or stayed, with its most bytes, in the order of use."""
    moved: dict[Row, int] = {}
    for entry in sorted(entries, key=lambda e: e.start_ms):
        if entry.kind in ("copy", "decode", "stay", "keep"):
            key = (entry.module, entry.name)
            moved[key] = max(entry.nbytes, moved.get(key, 0))
    known = [(module, name) for module, name in order if (module, name) in moved]
    return {key: moved[key] for key in dict.fromkeys([*known, *moved])}


# ---- words and tables


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
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())


def _stall_table(stalls: Sequence[Entry]) -> str:
    if not stalls:
        return '<p class="hf-none">Computing never stood still.</p>'
    rows = "".join(
        f'<tr><th scope="row"><button type="button" data-start="{round(e.start_ms * 1e6)}" '
        f'data-end="{round(e.end_ms * 1e6)}">{escaped(e.name)}</button></th>'
        f"<td>{format_ms(e.start_ms)}</td><td>{format_ms(e.end_ms - e.start_ms)}</td>"
        f'<td class="hf-why">{escaped(e.reason)}</td></tr>'
        for e in stalls
    )
    return (
        '<table class="hf-stalls"><caption>The longest stalls</caption><thead><tr>'
        '<th scope="col">waited for</th><th scope="col">at</th><th scope="col">stood still</th>'
        f'<th scope="col" class="hf-why">why</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _share_table(title: str, shares: Sequence[Share], whole_ms: float) -> str:
    rows = [(s.name, format_ms(s.ms), s.ms / (whole_ms or 1.0)) for s in shares[:TOP]]
    return _bars(title, rows)


def _eviction_table(shares: Sequence[Share]) -> str:
    most = max((s.count for s in shares), default=1)
    rows = [
        (s.name, f"{s.count:,} ×, {format_bytes(s.nbytes)} in all", s.count / most)
        for s in shares[:TOP]
    ]
    return _bars("Why weights had to go", rows)


def _bars(title: str, rows: Sequence[tuple[str, str, float]]) -> str:
    """A table with a bar in each row; nothing for no rows."""
    return "".join(_bars_of(title, rows)) if rows else ""


def _bars_of(title: str, rows: Sequence[tuple[str, str, float]]) -> Iterator[str]:
    yield f"<table><caption>{title}</caption><tbody>"
    for name, value, share in rows:
        yield (
            f'<tr><th scope="row">{escaped(name)}</th><td>{value}</td><td class="hf-bar">'
            '<svg width="90" height="8" aria-hidden="true"><rect class="hf-back" width="90" '
            f'height="8" rx="3"/><rect width="{90 * min(1.0, share):.1f}" height="8" rx="3"/></svg>'
            "</td></tr>"
        )
    yield "</tbody></table>"


_BODY = """<div class="hf-residency">
<header><h2>{title}</h2><dl class="hf-tiles">{tiles}</dl></header>
<div class="hf-card">
<div class="hf-tools"><ul class="hf-legend" aria-label="Colours"></ul>
<div class="hf-zoom" role="group" aria-label="Zoom"><button type="button" data-do="out"
 aria-label="Zoom out">−</button><button type="button" data-do="in" aria-label="Zoom in">+</button
><button type="button" data-do="all">all</button><button type="button" data-do="next"
 title="the next stall">next stall</button></div></div>
<div class="hf-plot"><canvas class="hf-canvas" tabindex="0" role="img"
 aria-label="Passes, stalls, the link and the weights on the device over time; the tables below
 tell the same in words"></canvas><canvas class="hf-over" aria-hidden="true"></canvas></div>
<p class="hf-hint">Wheel or <kbd>+</kbd> <kbd>−</kbd> zooms, drag or <kbd>←</kbd> <kbd>→</kbd>
 moves, <kbd>N</kbd> goes to the next stall, double click or <kbd>Esc</kbd> shows all.</p>
<p class="hf-said" role="status" aria-live="polite"></p>
<noscript><p>The picture needs JavaScript, which is switched off; the tables do not.</p></noscript>
</div>
<div class="hf-tables"><div class="hf-card hf-wide">{stalls}</div>
<div class="hf-card hf-side">{reasons}{evictions}{layers}</div></div>
<details class="hf-words"><summary>In words</summary><pre>{words}</pre></details>
<div class="hf-tip" hidden></div>
<script type="application/octet-stream" class="hf-data">{data}</script>
</div>"""
