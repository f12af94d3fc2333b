"""A recording as one HTML file: every block over time, the address space, the largest holders.

Covers: packing a recording into a page, and writing it.  Leaves to others: what the page shows
once it is open (assets/page.js), words (report), pictures without a browser (timeline).
Promise: the file needs no network and may not use any; every text of the recording is data, never
markup; 250,000 events are packed in a few seconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path
from string import Template
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole
from holdfast.memory import pairing
from holdfast.memory.recording import Frame, Recording
from holdfast.memory.report import Report

ASSETS = Path(__file__).with_name("assets")
WIDTHS = {"H": 2, "I": 4, "Q": 8}  # bytes of one number


@dataclass(frozen=True)
class Section:
    """What another layer adds below the views.

    `body` is HTML that runs nothing and has no style in its elements: the page lets only its own
    style and script do something, and those given here. Texts in it must be escaped.
    """

    name: str
    body: str
    style: str = ""
    script: str = ""


def page(recording: Recording, sections: Sequence[Section] = ()) -> str:
    """The page as text."""
    report = Report(recording)
    style, script = _asset("page.css"), _asset("page.js")
    styles = list(dict.fromkeys(section.style for section in sections if section.style))
    scripts = list(dict.fromkeys(section.script for section in sections if section.script))
    return Template(_asset("page.html")).substitute(
        policy=policy([style, *styles], [script, *scripts]),
        style=style,
        script=script,
        styles="".join(f"<style>{text}</style>\n" for text in styles),
        scripts="".join(f"<script>{text}</script>\n" for text in scripts),
        sections="".join(map(_shown, sections)),
        title=escaped(recording.title or "memory recording"),
        summary=escaped(report.summary()),
        data=base64.b64encode(zlib.compress(packed(recording, report), 6)).decode(),
    )


def _shown(section: Section) -> str:
    name = escaped(section.name)
    return f'<section class="more" aria-label="{name}">\n{section.body}\n</section>\n'


def write(recording: Recording, path: Path | str, sections: Sequence[Section] = ()) -> Path:
    """Write the page to `path`, whole or not at all. Raises BadInput with the system's reason."""
    path = Path(path)
    try:
        write_whole(path, page(recording, sections))
    except OSError as exc:
        raise BadInput(
            f"cannot write {str(path)!r}: {exc.strerror}", expected="a path in a folder that exists"
        ) from exc
    return path


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """What a browser lets a page do: these styles and these scripts, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def escaped(value: str) -> str:
    """For HTML: escaped, and without what neither HTML nor UTF-8 can hold."""
    sound = value.encode("utf-8", "replace").decode()
    return escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sound))


def packed(recording: Recording, report: Report) -> bytes:
    """The recording as the page reads it: a length, a head in JSON, then the columns.

    A column goes out as all first bytes, then all second bytes and so on: numbers that are alike
    then lie together, which halves what is left after compression.
    """
    columns = _columns(recording, report.blocks)
    head = _head(recording, report)
    head["columns"] = [
        [name, WIDTHS[column.typecode], len(column)] for name, column in columns.items()
    ]
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode()
    parts = [len(text).to_bytes(4, "little"), text]
    parts += [_shuffled(column) for column in columns.values()]
    return b"".join(parts)


def _columns(recording: Recording, blocks: pairing.Blocks) -> dict[str, array[int]]:
    begins, ends, never = blocks.begins, blocks.ends, len(recording)
    segments = pairing.segments(recording)
    columns = {
        "times": array("Q", _steps(recording.times_ns)),
        "begins": array("I", _steps(begins)),
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
        columns[f"series_{number}_times"] = array("Q", _steps(times))
        columns[f"series_{number}_bytes"] = array("Q", (max(value, 0) for value in values))
    return columns


def _steps(column: array[int]) -> Iterable[int]:
    """Every number less the one before it; where a clock went back, it stands still instead."""
    steady = accumulate(column, max, initial=0)
    return (after - before for before, after in pairwise(steady))


def _shuffled(column: array[int]) -> bytes:
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
            int(pairing.is_inner(frame)),
        )
        for frame in frames
    ]
    sites = [pairing.site(stack) for stack in recording.stacks_table]
    return {
        "title": recording.title,
        "started_s": recording.started_s,
        "duration_ns": recording.duration_ns,
        "events": len(recording),
        "texts": list(texts),
        "frames": rows,
        "stacks": stacks,
        "sites": [-1 if frame is None else frames[frame] for frame in sites],
        "place_names": [pairing.place_name(place) for place in recording.places_table],
        "tag_names": recording.tags_table,
        "series": list(recording.series),
        "notes": recording.notes,
        "peak_bytes": report.peak_bytes,
    }
