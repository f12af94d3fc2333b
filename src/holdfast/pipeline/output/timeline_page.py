"""A recorded timeline as one HTML page: memory over time, stages and steps, settings, the picture.

The page needs no network; every text in it is escaped. `base.html` draws the chart.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.base import html
from holdfast.base.html import Section, escape
from holdfast.base.series import Layer, Panel, Span
from holdfast.base.units import format_bytes
from holdfast.pipeline.output.timeline import (
    LIMIT,
    Sample,
    StageSpan,
    StepMark,
    Timeline,
    max_known,
)


def render(
    timeline: Timeline,
    settings: Mapping[str, Any],
    picture_png: bytes | None = None,
    weights: Sequence[Section] = (),
) -> str:
    """Render the page: chart, stages, settings, and the picture if there is one.

    `weights` are sections about weights under a budget, from `ResidencyRecording.section`.
    """
    return render_samples(
        *(timeline.duration_s, timeline.samples, timeline.stages, settings),
        events=timeline.events,
        picture_png=picture_png,
        sections=weights,
    )


def render_samples(
    duration_s: float,
    samples: Sequence[Sample],
    stages: Sequence[StageSpan],
    settings: Mapping[str, Any],
    *,
    events: Sequence[StepMark] = (),
    picture_png: bytes | None = None,
    sections: Sequence[Section] = (),
) -> str:
    """Render the page of any recorded samples."""
    layers = [Layer("process", tuple(one.host_bytes for one in samples))]
    device = Layer("device", tuple(one.device_bytes for one in samples))
    layers += [device] if device.peak is not None else []
    panel = Panel(
        title="Memory over time",
        kind="lines",
        capacity_bytes=None,
        at_s=tuple(round(one.at_s, 4) for one in samples),
        layers=tuple(layers),
        stages=tuple(Span(one.name, one.start_s, one.end_s) for one in stages),
    )
    title = escape(settings.get("prompt") or "A run of Holdfast")
    body = (
        f"<header>{_picture(picture_png)}<div><small>Holdfast timeline</small><h1>{title}</h1>\n"
        f"{html.tiles(_tiles(duration_s, layers, stages))}</div></header>\n"
        '<main id="app"></main>\n'
        "<noscript><p>The chart needs JavaScript, which is switched off.</p></noscript>\n"
        "<section><h2>Stages</h2><table><thead><tr><th>stage</th><th>time</th>"
        '<th class="share">share</th><th>steps</th><th>a step</th><th>peak, process</th>'
        f"<th>peak, device</th></tr></thead><tbody>\n{_stage_rows(stages, duration_s)}\n"
        "</tbody></table></section>\n<!-- sections -->"
        '<section><h2>Settings</h2><table class="settings"><tbody>\n'
        f"{_setting_rows(settings)}\n</tbody></table></section>"
    )
    every = 1 + len(events) // LIMIT
    marks = [(round(e.at_s, 4), e.stage, e.done, e.total) for e in events[::every]]
    return html.timeline_page("Holdfast timeline", [panel], duration_s, body, marks, sections)


def _size(count: int | None) -> str:
    return "–" if count is None else format_bytes(count)


def format_time(duration_s: float) -> str:
    """A time as "12 ms", "1.50 s" or "62 min 5 s"."""
    if duration_s >= 60:
        return f"{int(duration_s // 60)} min {duration_s % 60:.0f} s"
    return f"{duration_s:.2f} s" if duration_s >= 1 else f"{duration_s * 1000:.0f} ms"


def _picture(picture_png: bytes | None) -> str:
    if picture_png is None:
        return ""
    content = base64.b64encode(picture_png).decode()
    return f'<img alt="what the run made" src="data:image/png;base64,{content}"/>'


def _tiles(
    duration_s: float, layers: Sequence[Layer], stages: Sequence[StageSpan]
) -> dict[str, str]:
    slowest = max(stages, key=lambda stage: len(stage.step_ms), default=None)
    peaks = {f"peak of the {one.name}": _size(max_known(*one.nbytes)) for one in layers}
    tiles = {"time": format_time(duration_s), **peaks}
    if slowest and len(slowest.step_ms) > 1:
        tiles[f"a step of {slowest.name}"] = format_time(_mean_ms([slowest]) / 1000)
    return tiles


def _mean_ms(stages: Sequence[StageSpan]) -> float:
    times = [ms for stage in stages for ms in stage.step_ms]
    return sum(times) / len(times) if times else math.nan


def _stage_rows(stages: Sequence[StageSpan], duration_s: float) -> str:
    """A row for each name; repeated stages are summed."""
    rows, rest_s = [], duration_s
    for name, colour in html.stage_colours(stage.name for stage in stages).items():
        own = [stage for stage in stages if stage.name == name]
        time_s = sum(stage.end_s - stage.start_s for stage in own)
        rest_s -= time_s
        mean_ms = _mean_ms(own)
        cells = [
            str(sum(stage.steps for stage in own)),
            "–" if math.isnan(mean_ms) else format_time(mean_ms / 1000),
            _size(max_known(*(stage.peak_host_bytes for stage in own))),
            _size(max_known(*(stage.peak_device_bytes for stage in own))),
        ]
        title = f'<i class="dot {colour}"></i>{escape(name)}'
        rows.append(_row(title, colour, time_s, duration_s, cells))
    if rest_s > duration_s / 1000:
        rows.append(_row("between stages", "rest", rest_s, duration_s, ["–"] * 4))
    return "\n".join(rows)


def _row(name: str, colour: str, time_s: float, duration_s: float, cells: Sequence[str]) -> str:
    share = time_s / max(duration_s, 1e-9)
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f"<tr><th>{name}</th><td>{format_time(time_s)}</td>"
        f'<td class="share">{html.bar(share, colour)}{100 * share:.0f} %</td>{numbers}</tr>'
    )


def _setting_rows(settings: Mapping[str, Any]) -> str:
    rows = []
    for name, value in settings.items():
        shown = "–" if value is None else value
        if not isinstance(shown, str):
            shown = json.dumps(value, default=str, ensure_ascii=False)
        rows.append(f"<tr><th>{escape(name)}</th><td>{escape(shown)}</td></tr>")
    return "\n".join(rows)
