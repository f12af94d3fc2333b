"""A recorded timeline as one HTML page: memory over time, stages and steps, settings, the picture.

The page needs no network; every text in it is escaped.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from string import Template
from typing import Any

from holdfast.base.units import format_bytes
from holdfast.pipeline.output.timeline import LIMIT, StageSpan, Timeline, max_known

WIDTH, HEIGHT = 1120, 410
LEFT, RIGHT, TOP, BOTTOM = 78, 1092, 54, 360  # plot area
NEAREST_TICKS = 4  # minimum pixels between two ticks
LETTER = 7.5  # pixels, rather too wide
COLOURS = {
    "load": 0,
    "text": 1,
    "denoise": 2,
    "decode": 3,
}  # others: the next free one


def render(
    timeline: Timeline,
    settings: Mapping[str, Any],
    picture_png: bytes | None = None,
    weights: Sequence[str] = (),
) -> str:
    """Render the page: chart, stages, settings, and the picture if there is one.

    `weights` are HTML fragments about weights under a budget, from `ResidencyRecording.chart`. All
    other texts are escaped.
    """
    stages = timeline.stages
    colours = dict(COLOURS)
    for stage in stages:
        colours.setdefault(stage.name, len(colours) % 8)
    chart = _Chart(timeline)
    return Template(_PAGE).substitute(
        title=_text(settings.get("prompt") or "A run of Holdfast"),
        picture=_picture(picture_png),
        tiles=_tiles(timeline, stages),
        chart=chart.svg(stages, colours),
        stages=_stage_table(stages, colours, timeline.duration_s),
        weights="\n".join(f'<section class="weights">{one}</section>' for one in weights),
        settings=_setting_table(settings),
        data=chart.data(stages),
    )


def _text(value: object) -> str:
    """Escape, and replace what HTML or UTF-8 cannot hold."""
    sound = str(value).encode("utf-8", "replace").decode()
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sound))


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)


def _time(duration_s: float) -> str:
    if duration_s >= 60:
        return f"{int(duration_s // 60)} min {duration_s % 60:.0f} s"
    return f"{duration_s:.2f} s" if duration_s >= 1 else f"{duration_s * 1000:.0f} ms"


def _ticks(most: float, count: int) -> list[float]:
    """About `count` round numbers from 0 up to `most`."""
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * i for i in range(int(most / step + 1e-6) + 1)]


class _Chart:
    """Memory over time as SVG, and the data for the script that shows values at the pointer."""

    def __init__(self, timeline: Timeline) -> None:
        self.events, self.samples = timeline.events, timeline.samples
        self.peaks = (timeline.peak_host, timeline.peak_device)
        self.end_s = max(timeline.duration_s, 1e-3)
        most = [max_known(s.host_bytes, s.device_bytes) or 0 for s in self.peaks if s]
        self.top_bytes = max([1_000_000, *most]) * 1.15  # space for the peak labels

    def x(self, at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * min(at_s / self.end_s, 1)

    def y(self, count: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * count / self.top_bytes

    def svg(self, stages: Sequence[StageSpan], colours: Mapping[str, int]) -> str:
        shapes = [
            *self._bands(stages, colours),
            *self._axes(),
            *self._steps(stages, colours),
            *self._line("host", [(s.at_s, s.host_bytes) for s in self.samples]),
            *self._line("device", [(s.at_s, s.device_bytes) for s in self.samples]),
            *self._peak_marks(),
            *self._legend(),
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'id="chart"><title>Memory over time</title>\n' + "\n".join(shapes) + "\n"
            f'<g id="pointer" visibility="hidden"><line y1="{TOP}" y2="{BOTTOM}"/>'
            '<circle r="4.5" class="host"/><circle r="4.5" class="device"/></g></svg>'
        )

    def _bands(self, stages: Sequence[StageSpan], colours: Mapping[str, int]) -> Iterator[str]:
        """A name that does not fit its band is drawn above, if there is space."""
        free = 0.0
        for stage in stages:
            x, end = self.x(stage.start_s), self.x(stage.end_s)
            width, length = max(end - x, 1), len(stage.name) * LETTER
            name, about = _text(stage.name), _time(stage.end_s - stage.start_s)
            yield (
                f'<g class="band c{colours[stage.name]}"><title>{name}: {about}</title>'
                f'<rect class="head" x="{x:.1f}" y="{TOP - 24}" width="{width:.1f}" height="22"/>'
                f'<rect class="body" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
                f'height="{BOTTOM - TOP}"/>'
            )
            if length < width - 8:
                yield f'<text x="{x + width / 2:.1f}" y="{TOP - 9}">{name}</text>'
            elif end - x >= 1 and x >= free and x + length < RIGHT:
                free = x + length
                yield f'<text class="start above" x="{x:.1f}" y="{TOP - 30}">{name}</text>'
            yield "</g>"

    def _axes(self) -> Iterator[str]:
        name, unit = ("GB", 10**9) if self.top_bytes >= 2 * 10**9 else ("MB", 10**6)
        for value in _ticks(self.top_bytes / unit, 5):
            y = self.y(value * unit)
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{value:g} {name}</text>'
        for value in _ticks(self.end_s, 8):
            x = self.x(value)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 5}"/>'
            yield f'<text class="tick" x="{x:.1f}" y="{BOTTOM + 19}">{value:g} s</text>'

    def _steps(self, stages: Sequence[StageSpan], colours: Mapping[str, int]) -> Iterator[str]:
        last = -math.inf
        for event in self.events:
            x = self.x(event.at_s)
            if event.done and x - last >= NEAREST_TICKS:
                last = x
                yield (
                    f'<line class="step c{colours[event.stage]}" x1="{x:.1f}" x2="{x:.1f}" '
                    f'y1="{BOTTOM - 9}" y2="{BOTTOM}"/>'
                )

    def _line(self, name: str, points: list[tuple[float, int | None]]) -> Iterator[str]:
        """A line with gaps at unknown values; a single point is a dot."""
        for known, group in groupby(points, key=lambda point: point[1] is not None):
            if not known:
                continue
            places = [f"{self.x(at_s):.1f},{self.y(count or 0):.1f}" for at_s, count in group]
            if len(places) == 1:
                x, _, y = places[0].partition(",")
                yield f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>'
                continue
            start, end = places[0].partition(",")[0], places[-1].partition(",")[0]
            path = " ".join(places)
            yield f'<path class="area {name}" d="M{start},{BOTTOM} L{path} L{end},{BOTTOM} Z"/>'
            yield f'<polyline class="{name}" points="{path}"/>'

    def _peak_marks(self) -> Iterator[str]:
        host, device = self.peaks
        taken: tuple[float, float] | None = None
        for name, label, sample, count in (
            ("host", "process", host, host and host.host_bytes),
            ("device", "device", device, device and device.device_bytes),
        ):
            if sample is None or count is None:
                continue
            x, y = self.x(sample.at_s), self.y(count)
            label_y = y - 10
            if taken and abs(taken[0] - x) < 170 and abs(taken[1] - label_y) < 16:
                label_y = taken[1] + (16 if label_y > taken[1] else -16)
            taken = (x, label_y)
            side = "end" if x > (LEFT + RIGHT) / 2 else "start"
            yield f'<circle class="peak {name}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            yield (
                f'<text class="peak {name} {side}" x="{x:.1f}" y="{label_y:.1f}">'
                f"{label} peak {_size(count)}</text>"
            )

    def _legend(self) -> Iterator[str]:
        names = {"host": "memory of the process"}
        if self.peaks[1]:
            names["device"] = "memory of the device"
        for number, (name, label) in enumerate(names.items()):
            x, y = LEFT + 190 * number, HEIGHT - 8
            yield f'<line class="key {name}" x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}"/>'
            yield f'<text class="tick start" x="{x + 28}" y="{y}">{label}</text>'

    def data(self, stages: Sequence[StageSpan]) -> str:
        every = 1 + len(self.events) // LIMIT
        document = {
            "plot": [LEFT, RIGHT, TOP, BOTTOM, self.end_s, self.top_bytes],
            "samples": [(round(s.at_s, 4), s.host_bytes, s.device_bytes) for s in self.samples],
            "stages": [(s.name, s.start_s, s.end_s) for s in stages],
            "events": [(round(e.at_s, 4), e.stage, e.done, e.total) for e in self.events[::every]],
        }
        return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _picture(picture_png: bytes | None) -> str:
    if picture_png is None:
        return ""
    content = base64.b64encode(picture_png).decode()
    return f'<img alt="what the run made" src="data:image/png;base64,{content}"/>'


def _tiles(timeline: Timeline, stages: Sequence[StageSpan]) -> str:
    slowest = max(stages, key=lambda stage: len(stage.step_ms), default=None)
    host, device = timeline.peak_host, timeline.peak_device
    tiles = {
        "time": _time(timeline.duration_s),
        "peak of the process": _size(host and host.host_bytes),
    }
    if device:
        tiles["peak of the device"] = _size(device.device_bytes)
    if slowest and len(slowest.step_ms) > 1:
        tiles[f"a step of {slowest.name}"] = _time(_mean_ms([slowest]) / 1000)
    return "".join(f"<div><b>{_text(v)}</b><span>{_text(k)}</span></div>" for k, v in tiles.items())


def _mean_ms(stages: Sequence[StageSpan]) -> float:
    times = [ms for stage in stages for ms in stage.step_ms]
    return sum(times) / len(times) if times else math.nan


def _stage_table(stages: Sequence[StageSpan], colours: Mapping[str, int], duration_s: float) -> str:
    """A row for each name; repeated stages are summed."""
    rows, rest_s = [], duration_s
    for name in dict.fromkeys(stage.name for stage in stages):
        own = [stage for stage in stages if stage.name == name]
        time_s = sum(stage.end_s - stage.start_s for stage in own)
        rest_s -= time_s
        mean_ms = _mean_ms(own)
        cells = [
            str(sum(stage.steps for stage in own)),
            "–" if math.isnan(mean_ms) else _time(mean_ms / 1000),
            _size(max_known(*(stage.peak_host_bytes for stage in own))),
            _size(max_known(*(stage.peak_device_bytes for stage in own))),
        ]
        rows.append(_row(name, colours[name], time_s, duration_s, cells))
    if rest_s > duration_s / 1000:
        rows.append(_row("between stages", None, rest_s, duration_s, ["–"] * 4))
    return "\n".join(rows)


def _row(
    name: str, colour: int | None, time_s: float, duration_s: float, cells: Sequence[str]
) -> str:
    share = 100 * time_s / max(duration_s, 1e-9)
    dot = "" if colour is None else f'<i class="dot c{colour}"></i>'
    bar = f'<i class="bar c{8 if colour is None else colour}" style="width:{share * 0.7:.1f}%"></i>'
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f"<tr><th>{dot}{_text(name)}</th><td>{_time(time_s)}</td>"
        f'<td class="share">{bar}<span>{share:.0f} %</span></td>{numbers}</tr>'
    )


def _setting_table(settings: Mapping[str, Any]) -> str:
    rows = []
    for name, value in settings.items():
        shown = "–" if value is None else value
        if not isinstance(shown, str):
            shown = json.dumps(value, default=str, ensure_ascii=False)
        rows.append(f"<tr><th>{_text(name)}</th><td>{_text(shown)}</td></tr>")
    return "\n".join(rows)


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; script-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<title>Holdfast timeline</title>
<style>
:root { --page: #f4f6f8; --card: #fff; --ink: #1f2933; --soft: #5f6c7b; --line: #dfe5ea;
  --host: #2563c9; --device: #d1246a; --c0: #7b8794; --c1: #7a52c7; --c2: #2a8f57; --c3: #c7761a;
  --c4: #0e8a9a; --c5: #b5483a; --c6: #8a7a1f; --c7: #4a5fc1; --c8: #b8c2cc; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161b; --card: #1b2128; --ink: #e6ebf0; --soft: #9aa7b4; --line: #2f3944;
    --host: #6ea8ff; --device: #ff6fa5; --c0: #8e9aa8; --c1: #a98bf0; --c2: #4fbf82; --c3: #eaa24a;
    --c4: #3fbccb; --c5: #e57f70; --c6: #cdbb4e; --c7: #8a9cf0; --c8: #4b5762; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px; max-width: 1180px; background: var(--page);
  color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
header { display: flex; gap: 24px; align-items: center; margin-bottom: 20px; }
header img { max-width: 240px; max-height: 200px; border-radius: 10px; }
h1 { margin: 0 0 14px; font-size: 21px; line-height: 1.35; font-weight: 600; max-height: 4.05em;
  overflow: hidden; overflow-wrap: anywhere; }
h2 { margin: 0 0 8px; font-size: 15px; }
small { color: var(--soft); font-size: 13px; letter-spacing: .02em; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; }
.tiles div, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tiles div { padding: 8px 16px; }
.tiles b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
section { position: relative; padding: 16px 18px; margin-bottom: 16px; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 640px; touch-action: pan-y; }
svg text { font-size: 13px; fill: var(--ink); text-anchor: middle; }
svg .tick { fill: var(--soft); font-size: 12px; } svg .end { text-anchor: end; }
svg .start { text-anchor: start; } svg .grid { stroke: var(--line); }
.band .head { fill: var(--c); } .band .body { fill: var(--c); opacity: .1; }
svg .band text { fill: var(--card); font-weight: 600; } svg .band .above { fill: var(--c); }
svg .step { stroke: var(--c); stroke-width: 1.5; }
svg polyline { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--c); opacity: .05; } svg circle { fill: var(--c); }
svg .key { stroke: var(--c); stroke-width: 3; }
svg circle.peak { stroke: var(--card); stroke-width: 1.5; }
svg text.peak { fill: var(--c); font-weight: 600; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; }
#pointer line { stroke: var(--soft); stroke-dasharray: 3 3; }
#tip { position: fixed; z-index: 2; pointer-events: none; padding: 7px 11px; border-radius: 8px;
  background: var(--ink); color: var(--card); font-size: 13px; white-space: pre; }
.host { --c: var(--host); } .device { --c: var(--device); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.c8 { --c: var(--c8); }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-top: 1px solid var(--line); }
th:first-child { padding-left: 0; text-align: left; font-weight: 600; white-space: nowrap; }
thead th, thead th:first-child { border: 0; color: var(--soft); font-size: 13px; font-weight: 500; }
td { white-space: nowrap; } td.share { width: 26%; min-width: 130px; text-align: left; }
.bar { display: inline-block; height: 10px; min-width: 2px; margin-right: 8px;
  border-radius: 3px; background: var(--c); }
.dot { display: inline-block; width: 11px; height: 11px; margin-right: 8px; border-radius: 3px;
  background: var(--c); }
.settings td { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; width: 100%; }
.settings th:first-child { vertical-align: top; color: var(--soft); font-weight: 500; }
@media (max-width: 700px) { header { display: block; } }
</style></head><body>
<header>$picture<div><small>Holdfast timeline</small><h1>$title</h1>
<div class="tiles">$tiles</div></div></header>
<section>$chart<div id="tip" hidden="hidden"></div></section>
<section><h2>Stages</h2><table><thead><tr><th>stage</th><th>time</th>
<th style="text-align:left">share</th><th>steps</th><th>a step</th><th>peak, process</th>
<th>peak, device</th></tr></thead><tbody>
$stages
</tbody></table></section>
$weights
<section><h2>Settings</h2><table class="settings"><tbody>
$settings
</tbody></table></section>
<script type="application/json" id="data">$data</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [left, right, top_, bottom, end, most] = data.plot;
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const pointer = document.getElementById("pointer");
function size(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  while (count >= 1000 && i < 4) { count /= 1000; i += 1; }
  return count.toFixed(i && count < 99.95 ? 1 : 0) + " " + units[i];
}
function before(rows, at) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][0] <= at) { low = middle + 1; } else { high = middle; }
  }
  return rows[low - 1];
}
function lines(at, sample) {
  const text = [at.toFixed(end < 10 ? 3 : 2) + " s"];
  const stage = data.stages.filter(s => s[1] <= at && at <= s[2]).pop();
  if (stage) {
    const event = before(data.events, at);
    const [, name, done, total] = event || [];
    const of = total ? ", step " + Math.min(done + 1, total) + " of " + total
      : done ? ", " + done + " done" : "";
    text.push(stage[0] + (name === stage[0] ? of : ""));
  }
  if (sample[1] !== null) { text.push("process " + size(sample[1])); }
  if (sample[2] !== null) { text.push("device " + size(sample[2])); }
  return text.join("\\n");
}
function show(event) {
  const box = chart.getBoundingClientRect();
  const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
  if (x < left || x > right || !data.samples.length) { return hide(); }
  const at = (x - left) / (right - left) * end;
  const sample = before(data.samples, at) || data.samples[0];
  pointer.setAttribute("visibility", "visible");
  pointer.children[0].setAttribute("x1", x);
  pointer.children[0].setAttribute("x2", x);
  for (const i of [1, 2]) {
    const dot = pointer.children[i], count = sample[i];
    dot.setAttribute("visibility", count === null ? "hidden" : "inherit");
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", bottom - (bottom - top_) * (count || 0) / most);
  }
  tip.textContent = lines(at, sample);
  tip.hidden = false;
  const width = tip.offsetWidth, room = window.innerWidth - width - 24;
  tip.style.left = event.clientX + (event.clientX > room ? -width - 14 : 14) + "px";
  tip.style.top = event.clientY + 14 + "px";
}
function hide() { tip.hidden = true; pointer.setAttribute("visibility", "hidden"); }
chart.addEventListener("pointermove", show);
chart.addEventListener("pointerdown", show);
chart.addEventListener("pointerleave", hide);
</script></body></html>
"""
