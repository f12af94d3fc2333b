"""Memory of a process over the whole time, as a chart of block characters.

Each column shows the maximum of its interval, so that no peak is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from holdfast.dashboard.tui import words
from holdfast.dashboard.tui.history import ProcessSample

AXIS = 10
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(
    name: str, samples: Sequence[ProcessSample], figure: str, width: int, rows: int, style: str
) -> list[Text]:
    """A title and `rows` lines; empty if nothing is known."""
    points = [(one.at_s, getattr(one, figure)) for one in samples]
    known = [(at_s, count) for at_s, count in points if count is not None]
    if not known:
        return []
    values = columns(known, width - AXIS - 1)
    most = max(count for _, count in known)
    low = _floor(min(value for value in values if value is not None), most)
    span = known[-1][0] - known[0][0]
    title = Text(f"{name}: ", style="bold")
    title.append(
        f"{words.size(known[-1][1])} now, {words.size(most)} at most in {words.seconds(span)}",
        style="not bold",
    )
    return [title, *_lines(values, low, most, rows, style)]


def columns(points: Sequence[tuple[float, int]], count: int) -> list[int | None]:
    """The maximum in each of `count` equal intervals; gaps repeat the previous value."""
    began, ended = points[0][0], points[-1][0]
    span = max(ended - began, 1e-9)
    found: list[int | None] = [None] * max(count, 1)
    for at_s, value in points:
        at = min(int((at_s - began) / span * count), count - 1)
        found[at] = max(found[at] or 0, value)
    for at in range(1, len(found)):
        if found[at] is None:
            found[at] = found[at - 1]
    return found


def _floor(least: int, most: int) -> int:
    """Where the axis begins: 0, unless the range is small but above a hundredth."""
    zoomed = 0.65 * most <= least <= 0.99 * most
    return int(least - 0.1 * (most - least)) if zoomed else 0


def _lines(values: Sequence[int | None], low: int, most: int, rows: int, style: str) -> list[Text]:
    span = max(most - low, 1)
    heights = [0 if v is None else max(round((v - low) / span * rows * 8), 1) for v in values]
    lines = []
    for row in range(rows - 1, -1, -1):
        edge = words.size(most) if row == rows - 1 else words.size(low) if row == 0 else ""
        line = Text(f"{edge:>{AXIS - 1}} ", style=words.SOFT, no_wrap=True)
        blocks = "".join(_EIGHTHS[min(max(height - row * 8, 0), 8)] for height in heights)
        lines.append(line.append(blocks, style=style))
    return lines
