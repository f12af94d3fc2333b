"""Bytes over time: series, thinning, a text chart, and pictures by matplotlib.

`plot()` works without matplotlib and without a display. A thinned series keeps its highest and
lowest value.
"""

from __future__ import annotations

import shutil
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.base.html import Section
from holdfast.base.series import Series, kept_events, thin_series
from holdfast.base.units import format_bytes
from holdfast.memory.profile import lifetimes, page
from holdfast.memory.profile.recording import Kind, Recording
from holdfast.memory.profile.report import Report, format_ns

By = Literal["total", "place", "tag", "location"]
PICTURES = (".png", ".svg", ".pdf")
POINTS = 4000  # of a picture; more than its width in pixels
OTHERS = "others"
# Paul Tol's colours, which stay apart for every common kind of colour vision.
COLOURS = ("#4477aa", "#44aa99", "#ccbb44", "#ee6677", "#66ccee", "#aa3377", "#ee8866", "#228833")
_REST = "#c3ccd6"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Chart(str):
    """A text chart; its repr is the chart, so that a shell shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Timeline:
    """A recording as bytes over time."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.report = Report(recording)

    def series(self, by: By = "total", top: int = 8) -> dict[str, Series]:
        """Bytes alive after every event: in total, or for each place, tag or source line.

        Names are sorted by their peak; past `top` they are added up as "others". The sampled
        resident memory is "rss" of `recording.series`.
        """
        recording, blocks = self.recording, self.report.blocks
        if by == "total":
            return {"total": Series(recording.times_ns, self.report.totals)}
        if by not in self.report.names:
            raise BadInput(
                f"cannot make series by {by!r}", expected='"total", "place", "tag" or "location"'
            )
        names, column = self.report.names[by]
        rows: dict[str, list[int]] = {}
        for row, begin in enumerate(blocks.begins):
            rows.setdefault(names[column[begin]], []).append(row)
        most = self._most(names, column)
        order = sorted(rows, key=lambda name: (-most[name], name))
        groups = {name: rows[name] for name in order[:top]}
        if order[top:]:
            groups[OTHERS] = [row for name in order[top:] for row in rows[name]]
        return {
            name: Series(recording.times_ns, lifetimes.totals(recording, blocks, own))
            for name, own in groups.items()
        }

    def _most(self, names: list[str], column: array[int]) -> dict[str, int]:
        recording, blocks = self.recording, self.report.blocks
        closed = {end: begin for begin, end in zip(blocks.begins, blocks.ends, strict=True)}
        held, most = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for number, kind in enumerate(recording.kinds):
            begin = closed.get(number)
            if begin is not None:
                held[names[column[begin]]] -= recording.sizes[begin]
            if kind == Kind.ALLOC:
                name = names[column[number]]
                held[name] += recording.sizes[number]
                most[name] = max(most[name], held[name])
        return most

    def plot(self, path: Path | str | None = None) -> Chart | Path:
        """Print a text chart, or write a picture to `path`; returns the chart or the path.

        The suffix decides: matplotlib draws .png, .svg and .pdf; .html is the page.
        """
        if path is not None:
            return self.save(path)
        chart = self.chart(shutil.get_terminal_size((80, 24)).columns)
        if sys.stdout is not None:
            sys.stdout.write(f"{_encodable(chart, sys.stdout.encoding)}\n")
        return chart

    def save(self, path: Path | str, sections: Sequence[Section] = ()) -> Path:
        """Write the page (.html) or a picture (.png, .svg, .pdf). Raises BadInput for other names.

        `sections` come below the views of the page; pictures have none.
        """
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix in (".html", ".htm"):
            return page.write(self.recording, path, sections)
        if suffix not in PICTURES:
            raise BadInput(
                f"cannot tell from {str(path)!r} what to write",
                expected=f"a name that ends in .html or one of {', '.join(PICTURES)}",
            )
        try:
            _draw(self).savefig(path, dpi=120)
        except OSError as exc:
            raise BadInput(
                f"cannot write {str(path)!r}: {exc.strerror}",
                expected="a path in a folder that exists",
            ) from exc
        return path

    def chart(self, width: int = 80, height: int = 12) -> Chart:
        """The total over time as text, `width` columns wide; a column shows its peak."""
        peak, length = self.report.peak_bytes, max(self.recording.duration_ns, 1)
        labels = {0: format_bytes(peak), height // 2: format_bytes(peak // 2)}
        margin = max(map(len, labels.values())) + 1
        columns = max(width - margin - 2, 10)
        tops = [round(8 * height * value / max(peak, 1)) for value in self._column_peaks(columns)]
        lines = []
        for row in range(height):
            base = 8 * (height - 1 - row)
            line = "".join(_EIGHTHS[min(max(top - base, 0), 8)] for top in tops)
            mark = "┤" if row in labels else "│"
            lines.append(f"{labels.get(row, ''):>{margin}}{mark}{line}".rstrip())
        lines.append(f"{'0 B':>{margin}}┼{'─' * columns}")
        end = format_ns(length)
        lines.append(f"{'':>{margin}} 0{end:>{columns - 1}}")
        lines.append(
            f"{'':>{margin}} peak {format_bytes(peak)}, "
            f"{format_ns(self.report.peak_ns)} after the start"
        )
        return Chart("\n".join(lines))

    def _column_peaks(self, columns: int) -> list[int]:
        """The peak within each of `columns` equal parts of the time."""
        times, totals = self.recording.times_ns, self.report.totals
        length = max(self.recording.duration_ns, times[-1] if times else 0) + 1
        found, state, before = [], 0, 0
        for column in range(columns):
            until = bisect_left(times, length * (column + 1) // columns, before)
            found.append(max([state, *totals[before:until]]))
            if until > before:
                state = totals[until - 1]
            before = until
        return found


def _encodable(chart: Chart, encoding: str | None) -> str:
    try:
        chart.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        plain = {ord(c): "#" for c in _EIGHTHS[4:]} | {ord(c): " " for c in _EIGHTHS[:4]}
        plain |= {ord("┤"): "+", ord("│"): "|", ord("┼"): "+", ord("─"): "-", ord("µ"): "u"}
        return chart.translate(plain).encode("ascii", "replace").decode()
    return chart


def _draw(timeline: Timeline) -> Any:
    """A matplotlib figure with stacked source lines, resident memory and the peak."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    except ImportError as exc:
        raise MissingDependency(
            "cannot draw a picture: matplotlib is not installed",
            expected="matplotlib 3.9 or newer",
            hint="pip install 'holdfast[plot]', or a name that ends in .html",
        ) from exc
    recording, report = timeline.recording, timeline.report
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    axes = figure.add_subplot()
    _draw_stack(timeline, axes)
    rss = recording.series.get("rss")
    if rss is not None and len(rss[0]):
        times, values = thin_series(Series(*rss), POINTS)
        seconds = [time_ns / 1e9 for time_ns in times]
        axes.plot(seconds, values, color="#17202b", lw=1.3, ls="--", label="resident memory")
    axes.plot([report.peak_ns / 1e9], [report.peak_bytes], "o", color="#17202b", ms=5)
    axes.annotate(
        f"peak {format_bytes(report.peak_bytes)}",
        (report.peak_ns / 1e9, report.peak_bytes),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        weight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )
    axes.set_title(_escape_math(recording.title or "memory recording"), loc="left", weight="bold")
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(round(value))))
    axes.set_xlabel("seconds")
    axes.set_xlim(0, max(recording.duration_ns, 1) / 1e9)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.grid(axis="y", color="#e1e6ec")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_stack(timeline: Timeline, axes: Any) -> None:
    recording, report = timeline.recording, timeline.report
    kept = kept_events(Series(recording.times_ns, report.totals), POINTS)
    seconds = [recording.times_ns[i] / 1e9 for i in kept] + [recording.duration_ns / 1e9]
    below = [0] * len(seconds)
    for number, (name, series) in enumerate(timeline.series("location", len(COLOURS)).items()):
        values = [series.bytes[i] for i in kept]
        above = [a + b for a, b in zip(below, [*values, *values[-1:]], strict=True)]
        colour = COLOURS[number] if number < len(COLOURS) else _REST
        axes.fill_between(
            seconds,
            below,
            above,
            step="post",
            color=colour,
            lw=0,
            label=_escape_math("/".join(name.replace("\\", "/").rsplit("/", 2)[-2:])),
        )
        below = above


def _escape_math(text: str) -> str:
    """Text for matplotlib, where a dollar sign would begin a formula."""
    return text.replace("$", r"\$").lstrip("_")
