"""A recording as one HTML file: every block over time, the address space, the largest holders.

The file uses no network. All text of the recording is data, never markup. 250,000 events are packed
in a few seconds. `assets/page.js` draws the views.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from string import Template
from typing import Any

from holdfast.base import html
from holdfast.base.html import Section
from holdfast.memory.profile import lifetimes
from holdfast.memory.profile.recording import Frame, Recording
from holdfast.memory.profile.report import Report

ASSETS = Path(__file__).with_name("assets")
WIDTHS = {"H": 2, "I": 4, "Q": 8}  # bytes of one element


def page(recording: Recording, sections: Sequence[Section] = ()) -> str:
    """The page as HTML. `sections` come below the views."""
    report, title = Report(recording), recording.title or "memory recording"
    body = Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        summary=html.escape(report.summary()),
        data=base64.b64encode(zlib.compress(pack(recording, report), 6)).decode(),
    )
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    script = html.read_script(ASSETS / "page.js")
    return html.page(f"{title} · Holdfast memory", body, style, script, sections)


def write(recording: Recording, path: Path | str, sections: Sequence[Section] = ()) -> Path:
    """Write the page to `path`, whole or not at all. Raises BadInput with the system's reason."""
    return html.write(Path(path), page(recording, sections))


def pack(recording: Recording, report: Report) -> bytes:
    """The recording as the page reads it: a length, a JSON head, then the columns.

    A column is written as all first bytes, then all second bytes and so on: similar bytes lie
    together then, which halves the compressed size.
    """
    columns = _columns(recording, report.blocks)
    head = _head(recording, report)
    head["columns"] = [
        [name, WIDTHS[column.typecode], len(column)] for name, column in columns.items()
    ]
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode()
    parts = [len(text).to_bytes(4, "little"), text]
    parts += [_shuffle(column) for column in columns.values()]
    return b"".join(parts)


def _columns(recording: Recording, blocks: lifetimes.BlockEvents) -> dict[str, array[int]]:
    begins, ends, never = blocks.begins, blocks.ends, len(recording)
    segments = lifetimes.segments(recording)
    columns = {
        "times": array("Q", _differences(recording.times_ns)),
        "begins": array("I", _differences(begins)),
        "lives": array(
            "I", (0 if e == never else e - b for b, e in zip(begins, ends, strict=True))
        ),
        "sizes": array("Q", (recording.sizes[b] for b in begins)),
        "addresses": array("Q", (recording.addresses[b] for b in begins)),
        "stack_of": array("I", (recording.stacks[b] for b in begins)),
        "places": array("H", (recording.places[b] for b in begins)),
        "tags": array("H", (recording.tags[b] for b in begins)),
        "segment_begins": array("I", (s.begin for s in segments)),
        "segment_ends": array("I", (s.end for s in segments)),
        "segment_addresses": array("Q", (s.address for s in segments)),
        "segment_sizes": array("Q", (s.size for s in segments)),
        "segment_places": array("H", (s.place for s in segments)),
    }
    for number, (times, values) in enumerate(recording.series.values()):
        columns[f"series_{number}_times"] = array("Q", _differences(times))
        columns[f"series_{number}_bytes"] = array("Q", (max(value, 0) for value in values))
    return columns


def _differences(column: array[int]) -> Iterable[int]:
    """Every element less the one before it; a clock that goes back stands still instead."""
    steady = accumulate(column, max, initial=0)
    return (after - before for before, after in pairwise(steady))


def _shuffle(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column.byteswap()
    data, width = column.tobytes(), WIDTHS[column.typecode]
    return b"".join(data[byte::width] for byte in range(width))


def _head(recording: Recording, report: Report) -> dict[str, Any]:
    frames: dict[Frame, int] = {}
    stacks = [[frames.setdefault(f, len(frames)) for f in s] for s in recording.stacks_table]
    texts: dict[str, int] = {}
    rows = [
        (
            texts.setdefault(frame.file, len(texts)),
            frame.line,
            texts.setdefault(frame.function, len(texts)),
            int(lifetimes.is_inner(frame)),
        )
        for frame in frames
    ]
    sites = [lifetimes.site(stack) for stack in recording.stacks_table]
    return {
        "title": recording.title,
        "started_s": recording.started_s,
        "duration_ns": recording.duration_ns,
        "events": len(recording),
        "texts": list(texts),
        "frames": rows,
        "stacks": stacks,
        "sites": [-1 if frame is None else frames[frame] for frame in sites],
        "place_names": [lifetimes.place_name(place) for place in recording.places_table],
        "tag_names": recording.tags_table,
        "series": list(recording.series),
        "notes": recording.notes,
        "peak_bytes": report.peak_bytes,
    }
