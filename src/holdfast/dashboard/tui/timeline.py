"""Everything that `top` has seen as a file: memory over time, stacked by owner.

A file needs no network, runs only its own script, and is written atomically. Where processes were
sampled at different times, a stack uses the last value before.
"""

from __future__ import annotations

import csv
import io
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from holdfast.base import html
from holdfast.base.codec import encode
from holdfast.base.errors import BadInput
from holdfast.base.series import Layer, Panel, Span
from holdfast.dashboard.tui.history import Named, ProcessSample
from holdfast.dashboard.tui.session import Session, Watched

NAME = "holdfast-timeline.html"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Document:
    """All charts, from `began_s` (seconds since 1970) on."""

    format: str
    version: int
    host: str
    began_s: float
    duration_s: float
    panels: tuple[Panel, ...]


def document(session: Session) -> Document:
    """Make the document of a session. Raises BadInput if it is empty."""
    samples, snapshot = session.machine.samples, session.snapshot
    if snapshot is None or not samples:
        raise BadInput("cannot save a timeline: nothing was seen yet", hint="wait for a look")
    began_s = samples[0].at_s
    watched = list(session.watched.values())
    panels = [_ram(session, began_s), *_devices(session, began_s)]
    for one in watched:
        panels += _own(one, began_s)
    return Document(
        format="holdfast-timeline",
        version=VERSION,
        host=snapshot.machine.host,
        began_s=began_s,
        duration_s=samples[-1].at_s - began_s,
        panels=tuple(panel for panel in panels if panel.layers),
    )


# ---- panels of the whole machine


def _ram(session: Session, began_s: float) -> Panel:
    samples = session.machine.samples
    times = [sample.at_s for sample in samples]
    layers = [
        Layer(_name(one), tuple(_hold_values(one, times, lambda sample: sample.ram_bytes)))
        for one in session.watched.values()
    ]
    rest = _rest([sample.ram_bytes for sample in samples], layers)
    total = session.snapshot.machine.ram_total_bytes if session.snapshot else None
    return Panel(
        "RAM of the machine", "ram", total, _since(times, began_s), (*layers, Layer("others", rest))
    )


def _devices(session: Session, began_s: float) -> Iterable[Panel]:
    watched = session.watched.values()
    names = {d.name: d.total_bytes for one in watched for d in one.process.devices}
    for name, total in names.items():
        users = [one for one in watched if any(d.name == name for d in one.process.devices)]
        times = sorted({sample.at_s for one in users for sample in one.track.samples})
        layers = [Layer(_name(one), tuple(_hold_values(one, times, _on(name)))) for one in users]
        seen = _most(_hold_values(one, times, _choose_used(name)) for one in users)
        if any(count is not None for count in seen):
            layers.append(Layer("others", _rest(seen, layers)))
        yield Panel(f"device {name}", "device", total, _since(times, began_s), tuple(layers))


def _on(name: str) -> Callable[[ProcessSample], int | None]:
    return lambda sample: dict(sample.devices).get(name)


def _choose_used(name: str) -> Callable[[ProcessSample], int | None]:
    return lambda sample: dict(sample.used).get(name)


def _most(series: Iterable[Sequence[int | None]]) -> list[int | None]:
    columns = zip(*series, strict=True)
    return [max((v for v in column if v is not None), default=None) for column in columns]


def _hold_values(
    one: Watched, times: Sequence[float], figure: Callable[[ProcessSample], int | None]
) -> list[int | None]:
    """A value of a process at each time: the last before it; None outside its life."""
    samples = one.track.samples
    own = [sample.at_s for sample in samples]
    found: list[int | None] = []
    for at_s in times:
        at = bisect_right(own, at_s) - 1
        gone = at < 0 or (at == len(own) - 1 and at_s > own[-1])
        found.append(None if gone else figure(samples[at]))
    return found


def _rest(all_bytes: Sequence[int | None], layers: Sequence[Layer]) -> tuple[int | None, ...]:
    """What others use; at least 0, as processes share pages."""
    found: list[int | None] = []
    for at, count in enumerate(all_bytes):
        ours = sum(layer.nbytes[at] or 0 for layer in layers)
        found.append(None if count is None else max(count - ours, 0))
    return tuple(found)


# ---- panels of one process


def _own(one: Watched, began_s: float) -> Iterable[Panel]:
    samples = one.track.samples
    times = _since([sample.at_s for sample in samples], began_s)
    spans = tuple(_stages(samples, began_s))
    for kind in ("pools", "models"):
        rows: list[Named] = [getattr(sample, kind) for sample in samples]
        names = dict.fromkeys(name for row in rows for name, _ in row)
        layers = tuple(Layer(name, tuple(dict(row).get(name) for row in rows)) for name in names)
        what = "in memory pools" if kind == "pools" else "weights on devices"
        yield Panel(f"{_name(one)}: {what}", kind, None, times, layers, spans)


def _stages(samples: Sequence[ProcessSample], began_s: float) -> Iterable[Span]:
    for stage, group in groupby(samples, key=lambda sample: sample.stage):
        found = list(group)
        if stage is not None:
            yield Span(stage, found[0].at_s - began_s, found[-1].at_s - began_s)


def _name(one: Watched) -> str:
    return f"{one.process.pid} {one.process.name}"


def _since(times: Sequence[float], began_s: float) -> tuple[float, ...]:
    return tuple(round(at_s - began_s, 3) for at_s in times)


# ---- files


def write(found: Document, path: Path) -> Path:
    """Write the format of the suffix. Raises BadInput with the system's reason."""
    forms = {".html": page, ".htm": page, ".json": as_json, ".csv": as_csv}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise BadInput(
            f"cannot save a timeline as {path.name!r}",
            expected="a name that ends in .html, .json or .csv",
        )
    return html.write(path, form(found))


def as_json(found: Document) -> str:
    return json.dumps(encode(found), separators=(",", ":")) + "\n"


def as_csv(found: Document) -> str:
    """One line for each value."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(("at_s", "panel", "layer", "bytes"))
    for panel in found.panels:
        for layer in panel.layers:
            for at_s, count in zip(panel.at_s, layer.nbytes, strict=True):
                if count is not None:
                    lines.writerow((at_s, panel.title, layer.name, count))
    return out.getvalue()


def page(found: Document) -> str:
    """A self-contained HTML page."""
    began = datetime.fromtimestamp(found.began_s).astimezone()
    body = (
        "<header><div><small>Holdfast top</small>"
        f"<h1>Memory of {html.escape(found.host)} over time</h1>"
        f'<p class="about">{began:%Y-%m-%d %H:%M:%S}, {found.duration_s:.1f} s. '
        "Drag across a picture to zoom, double click to see all.</p></div></header>\n"
        '<main id="app"></main>\n'
        "<noscript><p>This page needs JavaScript to draw its figures.</p></noscript>"
    )
    title = f"Holdfast timeline of {found.host}"
    return html.timeline_page(title, found.panels, found.duration_s, body)
