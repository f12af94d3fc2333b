"""SVG plots of a report: bars of a table, and an overview against all peers.

No script, no inline style, no network; every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.base.html import escape
from holdfast.dashboard.bench import phrases
from holdfast.dashboard.bench.document import Row, Standing, Subject, Table, standings

WIDTH = 960
NAME_END = 316  # names of systems end here, bars begin a little after
BAR_START, BAR_END = 324, 700
VALUE_END, RATIO_END = 830, 950
ROW, GAP, TITLE = 21, 13, 20
LONGEST_NAME = 48


def bars(table: Table) -> str:
    """Bars of a table: for each subject every system, its figure and the ratio to ours."""
    parts, y = [], 4.0
    for subject in table.subjects():
        drawn, y = _subject(subject, y)
        parts.append(drawn)
    return _svg(f"{table.name}: bars", y, parts)


def _svg(name: str, height: float, parts: Iterable[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}">'
    return head + "".join(parts) + "</svg>"


def _subject(subject: Subject, y: float) -> tuple[str, float]:
    parts = [_text(8, y + 14, subject.name, "subject")]
    y += TITLE
    ends = [end for row in subject.rows for end in (row.value, row.high) if end is not None]
    most = max(ends, default=0.0)
    for row in subject.rows:
        parts.append(_bar(subject, row, y, most))
        y += ROW
    return "".join(parts), y + GAP


def _bar(subject: Subject, row: Row, y: float, most: float) -> str:
    middle = y + ROW / 2
    better = subject.times_better(row)
    kind = "ours" if row.ours else "peer"
    title = [f"{row.system}: {phrases.figure(row.value, row.unit)}"]
    title += [f"runs from {phrases.spread(row)}"] if row.low is not None else []
    title += [row.remark] if row.remark else []
    parts = [f"<g><title>{escape('; '.join(title))}</title>"]
    parts.append(_text(NAME_END, middle + 4, _short(row.system), f"name {kind}", end=True))
    if row.value is not None and row.value >= 0:
        size = f'width="{_length(row.value, most):.1f}" height="{ROW - 8}" rx="2"'
        parts.append(f'<rect x="{BAR_START}" y="{y + 4:.1f}" {size} class="{kind}"/>')
        parts.append(_whisker(row, middle, most))
    words = phrases.figure(row.value, row.unit)
    parts.append(_text(VALUE_END, middle + 4, words, "value", end=True))
    if better is not None:
        look = subject.verdict(row) or "even"
        parts.append(_text(RATIO_END, middle + 4, phrases.times(better), look, end=True))
    return "".join(parts) + "</g>"


def _length(value: float, most: float) -> float:
    """Length of a bar in pixels; at least visible."""
    share = value / most if most > 0 else 0.0
    return max(1.5, share * (BAR_END - BAR_START))


def _whisker(row: Row, y: float, most: float) -> str:
    """The middle half of the runs."""
    if row.low is None or row.high is None or row.low < 0:
        return ""
    left, right = (BAR_START + _length(end, most) for end in (row.low, row.high))
    caps = f"M{left:.1f} {y - 4:.1f}v8M{right:.1f} {y - 4:.1f}v8"
    return f'<path class="spread" d="M{left:.1f} {y:.1f}H{right:.1f}{caps}"/>'


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{anchor}>{escape(text)}</text>'


# ---- overview

TICKS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def overview(tables: Sequence[Table]) -> str:
    """Each peer of each table: mean, minimum and maximum ratio on one scale."""
    found = [(table, standings(table)) for table in tables]
    found = [(table, stands) for table, stands in found if stands]
    if not found:
        return ""
    parts, y = [], 26.0
    for table, stands in found:
        parts.append(_text(8, y + 14, table.name, "subject"))
        y += TITLE
        for standing in stands:
            parts.append(_standing(standing, y))
            y += ROW
        y += GAP
    return _svg("how Holdfast stands against each peer", y, [_scale(y - GAP), *parts])


def _scale(bottom: float) -> str:
    parts = []
    for tick in TICKS:
        x = _across(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(f'<path class="{kind}" d="M{x:.1f} 20V{bottom:.1f}"/>')
        parts.append(f'<text x="{x:.1f}" y="13" class="tick" text-anchor="middle">{tick:g}×</text>')
    return "".join(parts)


def _across(ratio: float) -> float:
    """The x position of a ratio, clamped to the scale."""
    least, most = (math.log(tick) for tick in (TICKS[0], TICKS[-1]))
    share = (min(max(math.log(ratio), least), most) - least) / (most - least)
    return BAR_START + 12 + share * (BAR_END - BAR_START)


def _standing(standing: Standing, y: float) -> str:
    middle = y + ROW / 2
    look = "win" if standing.mean >= 1 else "loss"
    left, dot, right = (_across(r) for r in (standing.least, standing.mean, standing.most))
    count = f"{standing.subjects} subject{'' if standing.subjects == 1 else 's'}"
    span = f"{phrases.times(standing.least)} to {phrases.times(standing.most)}"
    title = f"{standing.peer}: {phrases.times(standing.mean)} on the average of {count}, {span}"
    parts = [f"<g><title>{escape(title)}</title>"]
    parts.append(_text(NAME_END, middle + 4, _short(standing.peer), "name peer", end=True))
    parts.append(f'<path class="span" d="M{left:.1f} {middle:.1f}H{right:.1f}"/>')
    parts.append(f'<circle cx="{dot:.1f}" cy="{middle:.1f}" r="4.5" class="{look}"/>')
    parts.append(_text(VALUE_END - 30, middle + 4, phrases.times(standing.mean), look, end=True))
    parts.append(_text(RATIO_END, middle + 4, count, "value", end=True))
    return "".join(parts) + "</g>"
