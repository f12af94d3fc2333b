"""Values of a snapshot as short text: sizes, bars, sparklines, stages.

Texts of a process are never markup and cannot control the terminal. Unknown is "–". A bar is never
longer than the number beside it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from holdfast.base.units import format_bytes
from holdfast.dashboard.snapshot.snapshot import PoolUse, RunNow

NOTHING = "–"
# Readable on dark and on light backgrounds.
CALM, WARM, HOT = "#2e9e5b", "#c9861a", "#d9484b"
RAM, DEVICE, SOFT = "#3f83d8", "#c9509b", "#7d8894"
STAGES = {
    "load": "loads",
    "text": "reads prompt",
    "denoise": "denoises",
    "decode": "decodes",
    "node": "runs node",
}
_HEIGHTS = "▁▂▃▄▅▆▇█"


def plain(text: str) -> str:
    """Remove control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def short(text: str, width: int) -> str:
    """Cut to `width` characters."""
    text = plain(text)
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def size(count: int | None) -> str:
    """Format bytes."""
    return NOTHING if count is None else format_bytes(count)


def percent(share: float | None) -> str:
    """Format a fraction."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def rate(gb_s: float | None) -> str:
    """Format a transfer rate; tiny ones are 0."""
    if gb_s is None:
        return NOTHING
    return "0" if gb_s < 0.005 else f"{gb_s:.2f}" if gb_s < 9.995 else f"{gb_s:.1f}"


def seconds(left_s: float | None) -> str:
    """Time in few characters: "0.8s", "53s", "4m10s", "2h10m"."""
    if left_s is None:
        return NOTHING
    if left_s < 9.95:
        return f"{left_s:.1f}s"
    whole = round(left_s)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def colour(share: float) -> str:
    """A colour for how full something is."""
    return CALM if share < 0.7 else WARM if share < 0.9 else HOT


def bar(share: float | None, width: int, style: str | None = None) -> Text:
    """A bar of `width` characters; empty if the share is unknown."""
    known = min(max(share or 0.0, 0.0), 1.0)
    full = int(known * width)  # rounded down: only 100 % is full
    text = Text().append("━" * full, style=style or colour(known))
    return text.append("─" * (width - full), style=SOFT)


def curve(values: Sequence[float | None], style: str) -> Text:
    """A sparkline: one character per value, from minimum to maximum; gaps for None."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    drawn = [" " if value is None else _height(value, low, high) for value in values]
    return Text("".join(drawn), style=style)


def _height(value: float, low: float, high: float) -> str:
    if high - low <= high / 100:  # ignore changes below a hundredth
        return _HEIGHTS[3] if high else _HEIGHTS[0]
    return _HEIGHTS[round((value - low) / (high - low) * (len(_HEIGHTS) - 1))]


def between(values: Sequence[float | None]) -> str:
    """Minimum and maximum of a curve, as its axis."""
    known = [int(value) for value in values if value is not None]
    if not known:
        return NOTHING
    low, high = format_bytes(min(known)), format_bytes(max(known))
    return low if low == high else f"{low} to {high}"


def hit_rate(pool: PoolUse) -> float | None:
    """Fraction of a pool's requests served without the system."""
    return pool.hits / pool.requests if pool.requests else None


def fragmentation(pool: PoolUse) -> float | None:
    """Fraction of a pool's reserved memory that no block uses."""
    if not pool.reserved_bytes:
        return None
    return max(pool.reserved_bytes - pool.allocated_bytes, 0) / pool.reserved_bytes


def progress(run: RunNow) -> float | None:
    """Fraction of its stage that is done."""
    return min(run.done / run.total, 1.0) if run.total else None


def stage(run: RunNow, width: int) -> Text:
    """The stage, a bar and the time left, in `width` characters."""
    name = STAGES[run.stage] if width >= 30 else run.stage
    share = progress(run)
    left = seconds(run.left_s) if run.left_s is not None else ""
    if share is None:
        return Text(f"{name} {seconds(run.stage_s)}"[:width])
    room = width - len(name) - len(left) - 2
    text = Text(f"{name} ")
    text.append(bar(share, room, CALM) if room >= 3 else percent(share))
    return text.append(f" {left}")
