"""Draws a run: memory over time, nodes as bands, the peak, and a table of the largest nodes.

An axis that does not begin at 0 says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base.series import Layer, Panel, Series, kept_events, ticks
from holdfast.base.units import format_bytes
from holdfast.nodes.memory.recording import RunRecording
from holdfast.nodes.memory.sampling import Peak
from holdfast.nodes.memory.sheet import LOGICAL, Sheet, Theme, find_theme, is_plain
from holdfast.nodes.memory.words import format_spent, nodes_seen, rows

MARGIN = 26
LEFT, RIGHT = 112, LOGICAL - 38  # the plots
HEADER, STRIP, AXIS = 88, 30, 34
PANEL, TALL, GAP = 218, 320, 40
MOST_DEVICES = 4
MOST_ROWS = 8
POINTS = 2400  # of a line at most; of each stretch the lowest and the highest stay
ROW, HEAD = 31, 50
ZOOM = 0.35  # an axis begins above 0 where what changes is less than this part of the most


def timeline(recorded: RunRecording, *, width: int = LOGICAL, theme: str = "dark") -> Any:
    """Draw a run; returns a Pillow image."""
    colours = find_theme(theme)
    shown = rows(recorded)[:MOST_ROWS]
    panels = list(_panels(recorded))
    each = TALL if len(panels) == 1 else PANEL
    below = HEADER + STRIP + len(panels) * (each + GAP) + AXIS
    height = below + (HEAD + ROW * len(shown) + 8 if shown else 0) + 26
    drawing = _Drawing(Sheet(width, height, colours.page), recorded, colours)
    drawing.header()
    y = float(HEADER)
    drawing.strip(y, STRIP + len(panels) * (each + GAP) - 14)
    y += STRIP
    for panel in panels:
        drawing.panel(panel, y + GAP - 14, each)
        y += each + GAP
    drawing.seconds(y + 2)
    if shown:
        drawing.table(shown, below)
    return drawing.sheet.picture()


def _panels(recorded: RunRecording) -> Iterator[Panel]:
    """A panel for each device and one for RAM; the peak is that of the first layer."""
    begin, samples, last = recorded.began_s, recorded.samples, recorded.samples[-1]
    for name in recorded.devices[:MOST_DEVICES]:
        found = [(s.at_s - begin, d) for s in samples for d in s.devices if d.name == name]
        layers = (
            Layer("in tensors", tuple(one.allocated_bytes for _, one in found)),
            Layer("reserved by torch", tuple(one.reserved_bytes for _, one in found)),
        )
        yield Panel(name, "device", found[-1][1].total_bytes, tuple(at for at, _ in found), layers)
    layers = [Layer("this process", tuple(sample.ram_bytes for sample in samples))]
    pinned = tuple(sample.pinned_bytes for sample in samples)
    layers += [Layer("pinned", pinned)] if any(pinned) else []
    times = tuple(sample.at_s - begin for sample in samples)
    yield Panel("RAM", "ram", last.ram_bytes + last.ram_free_bytes, times, tuple(layers))


class _Drawing:
    """A picture while it is drawn."""

    def __init__(self, sheet: Sheet, recorded: RunRecording, theme: Theme) -> None:
        self.sheet, self.recorded, self.theme = sheet, recorded, theme
        self.seconds_s = max(recorded.seconds, 1e-3)
        nodes = dict.fromkeys(span.node for span in recorded.spans)
        self.colours = {node: theme.nodes[at % len(theme.nodes)] for at, node in enumerate(nodes)}

    def x(self, at_s: float) -> float:
        """The x of a time in seconds from the beginning."""
        return LEFT + (RIGHT - LEFT) * min(max(at_s / self.seconds_s, 0), 1)

    def name(self, node: str) -> str:
        """The name of a node in characters that the font has."""
        name = self.recorded.name(node)
        return name if is_plain(name) else self.recorded.kind(node)

    # ---- above the plots

    def header(self) -> None:
        """The title, and the peaks in large letters."""
        sheet, theme, recorded = self.sheet, self.theme, self.recorded
        sheet.text(MARGIN, 40, "Memory of this run", 24, theme.ink, bold=True)
        about = f"{format_spent(recorded.seconds)}, {nodes_seen(recorded)}"
        sheet.text(MARGIN, 66, about, 15, theme.soft)
        tiles = [("peak RAM", recorded.peak_ram.ram_bytes, theme.ram)]
        for device in reversed(recorded.devices[:MOST_DEVICES]):
            tiles.append((f"peak {device}", recorded.peak_of(device)[1], theme.device))
        x = float(RIGHT + 12)
        for title, count, colour in tiles:
            size = format_bytes(count)
            room = max(sheet.length(size, 24), sheet.length(title, 13)) + 32
            x -= room
            sheet.box(x, 16, room - 10, 58, theme.card, stroke=theme.line, radius=9)
            sheet.text(x + (room - 10) / 2, 45, size, 24, colour, bold=True, anchor="middle")
            sheet.text(x + (room - 10) / 2, 65, title, 13, theme.soft, anchor="middle")

    def strip(self, y: float, depth: float) -> None:
        """The nodes as blocks with their names, and a tint of each below them."""
        sheet, begin = self.sheet, self.recorded.began_s
        for span in self.recorded.spans:
            left = self.x(span.began_s - begin)
            right = max(self.x((span.ended_s or span.began_s) - begin), left + 1.5)
            colour = self.colours[span.node]
            sheet.box(left, y, right - left - 0.8, STRIP - 6, colour, radius=3)
            sheet.box(left, y + STRIP - 4, right - left, depth - STRIP + 4, colour, alpha=0.09)
            name = sheet.fit_text(self.name(span.node), 14, right - left - 12)
            middle = (left + right) / 2
            sheet.text(middle, y + 17, name, 14, self.theme.page, bold=True, anchor="middle")

    # ---- plots

    def panel(self, panel: Panel, y: float, height: float) -> None:
        """One plot with its axis, lines and peak."""
        top, bottom = y + 16, y + height
        low, high = _range(panel)
        scale = _Scale(top, bottom, low, high)
        self._axis(panel, scale)
        if panel.capacity_bytes is not None and low < panel.capacity_bytes <= high:
            self._capacity(panel.capacity_bytes, scale)
        colours = self._colours(panel)
        for number, layer in reversed(list(enumerate(panel.layers))):
            counts = [count or 0 for count in layer.nbytes]
            kept = kept_events(Series([round(at * 1e9) for at in panel.at_s], counts), POINTS)
            points = [(self.x(panel.at_s[i]), scale.y(counts[i])) for i in kept]
            if number == 0:
                self.sheet.area(points, bottom, colours[0], 0.08 if low else 0.20)
            self.sheet.line(points, colours[number], 1.5 if number else 2.4)
        self._peak(panel, scale)

    def _colours(self, panel: Panel) -> tuple[str, str]:
        """Of the first layer, which is filled, and of the second."""
        theme = self.theme
        return (theme.ram, theme.soft) if panel.kind == "ram" else (theme.device, theme.second)

    def _axis(self, panel: Panel, scale: _Scale) -> None:
        sheet, theme = self.sheet, self.theme
        unit, name = (10**9, "GB") if scale.high >= 2 * 10**9 else (10**6, "MB")
        for value in ticks(scale.low / unit, scale.high / unit, 5):
            y = scale.y(value * unit)
            if y < scale.top + 8:
                continue  # its number would lie on the title
            sheet.line([(LEFT, y), (RIGHT, y)], theme.line)
            sheet.text(LEFT - 10, y + 5, f"{value:g} {name}", 14, theme.soft, anchor="end")
        sheet.text(MARGIN, scale.top - 10, panel.title, 16, theme.ink, bold=True)
        x = float(LEFT)
        for layer, colour in zip(panel.layers, self._colours(panel), strict=False):
            sheet.line([(x, scale.top - 15), (x + 20, scale.top - 15)], colour, 3)
            sheet.text(x + 27, scale.top - 10, layer.name, 14, theme.soft)
            x += 52 + sheet.length(layer.name, 14)
        if panel.capacity_bytes is not None:
            size = f"{format_bytes(panel.capacity_bytes)} in all"
            sheet.text(x, scale.top - 10, size, 14, theme.soft)
        if scale.low:
            sheet.text(
                RIGHT, scale.top - 10, "axis does not begin at 0", 13, theme.warn, anchor="end"
            )

    def _capacity(self, count: int, scale: _Scale) -> None:
        y = scale.y(count)
        self.sheet.dashes(LEFT, y, RIGHT, self.theme.warn, 1.5)
        text = f"all there is: {format_bytes(count)}"
        self.sheet.text(LEFT + 8, y - 6, text, 13, self.theme.warn)

    def _peak(self, panel: Panel, scale: _Scale) -> None:
        peak = panel.layers[0].peak or 0
        at, count = panel.at_s[peak], panel.layers[0].nbytes[peak] or 0
        colour = self._colours(panel)[0]
        x, y = self.x(at), scale.y(count)
        node = self._node_at(at)
        text = f"peak {format_bytes(count)}" + (f", {self.name(node)}" if node else "")
        sheet, theme = self.sheet, self.theme
        text = sheet.fit_text(text, 15, RIGHT - LEFT - 40)
        room = sheet.length(text, 15) + 20
        left = min(max(x - room / 2, LEFT + 4), RIGHT - room - 4)
        up = y - 40 if y - 40 > scale.top - 6 else y + 14
        sheet.box(left, up, room, 26, theme.card, stroke=colour, radius=6)
        sheet.text(left + room / 2, up + 18, text, 15, theme.ink, bold=True, anchor="middle")
        sheet.dot(x, y, 5, colour, theme.page)

    def _node_at(self, at_s: float) -> str | None:
        now = at_s + self.recorded.began_s
        spans = [s for s in self.recorded.spans if s.began_s <= now <= (s.ended_s or now)]
        return spans[0].node if spans else None  # a sample tells of the time before it

    def seconds(self, y: float) -> None:
        """The axis of time."""
        sheet, theme = self.sheet, self.theme
        for value in ticks(0, self.seconds_s, 8):
            x = self.x(value)
            sheet.line([(x, y - 12), (x, y - 6)], theme.soft)
            sheet.text(x, y + 10, f"{value:g} s", 14, theme.soft, anchor="middle")

    # ---- below the plots

    def table(self, shown: Sequence[Peak], y: float) -> None:
        """The hungriest nodes."""
        sheet, theme = self.sheet, self.theme
        height = HEAD + ROW * len(shown)
        sheet.box(MARGIN, y, LOGICAL - 2 * MARGIN, height, theme.card, stroke=theme.line, radius=9)
        device = any(row.device_bytes is not None for row in shown)
        columns = [("time", 600), ("RAM, most", 1000 if not device else 850)]
        columns += [("device, most", 1000)] if device else []
        columns += [("more than before", LOGICAL - MARGIN - 18)]
        sheet.text(MARGIN + 18, y + 29, "hungriest nodes", 14, theme.soft)
        for title, x in columns:
            sheet.text(x, y + 29, title, 14, theme.soft, anchor="end")
        most = max((row.above_bytes for row in shown), default=0) or 1
        for number, row in enumerate(shown):
            base = y + HEAD + ROW * number
            values = [format_spent(row.seconds), format_bytes(row.ram_bytes)]
            if device:
                values.append("-" if row.device_bytes is None else format_bytes(row.device_bytes))
            values.append(f"+{format_bytes(row.above_bytes)}" if row.above_bytes else "-")
            self._row(row, base, most, [(v, x) for v, (_, x) in zip(values, columns, strict=True)])

    def _row(self, row: Peak, y: float, most: int, values: Sequence[tuple[str, float]]) -> None:
        sheet, theme = self.sheet, self.theme
        sheet.line([(MARGIN + 18, y - 4), (LOGICAL - MARGIN - 18, y - 4)], theme.line)
        colour = self.colours.get(row.node, theme.soft)
        sheet.box(MARGIN + 18, y + 6, 13, 13, colour, radius=3)
        name = sheet.fit_text(self.name(row.node), 15, 400)
        sheet.text(MARGIN + 42, y + 18, name, 15, theme.ink, bold=True)
        for text, x in values:
            sheet.text(x, y + 18, text, 15, theme.ink, anchor="end")
        wide = 96 * row.above_bytes / most
        sheet.box(LOGICAL - MARGIN - 126 - wide, y + 7, wide, 12, colour, radius=3)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps bytes to y."""

    top: float
    bottom: float
    low: float
    high: float

    def y(self, count: float) -> float:
        part = (count - self.low) / (self.high - self.low)
        return self.bottom - (self.bottom - self.top) * min(max(part, 0), 1)


def _range(panel: Panel) -> tuple[float, float]:
    """The range of an axis: from 0, or from above it if the values hardly change."""
    low = min(count or 0 for count in panel.layers[0].nbytes)
    high = max(1_000_000, *(count or 0 for layer in panel.layers for count in layer.nbytes))
    if len(panel.layers) == 1 and high - low < ZOOM * high:
        room = max(high - low, high * 0.02)
        return max(low - 0.3 * room, 0), high + 0.45 * room
    return 0.0, high * 1.24
