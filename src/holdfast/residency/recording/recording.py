"""A recording of residency that can be kept: summary, page, JSON, Perfetto trace.

    with managed.recording() as recorded:
        transformer(**inputs)
    print(recorded.summary())
    recorded.save("run.html")

Recording changes no result. Files are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput, Misuse
from holdfast.base.files import write_whole
from holdfast.base.html import Section
from holdfast.residency.recording import page
from holdfast.residency.recording.journal import KINDS, THERE_BEFORE, Entry
from holdfast.residency.recording.summary import Summary, explain_stalls, group_by_kind, summarize

if TYPE_CHECKING:
    from holdfast.residency.managed.group import Group

FORMAT = "holdfast residency 1"
LANES = {"pass": 1, "stall": 2, "copy": 3, "decode": 4}  # rows in Perfetto
_LANE_NAMES = {1: "passes", 2: "stalls", 3: "link", 4: "decoder", 5: "kept and evicted"}


@dataclass
class ResidencyRecording:
    """The entries of one recording. Empty until the block of `recording` ends.

    `order` is (module, weight) in the order of use; the chart sorts its rows by it.
    """

    title: str = ""
    entries: list[Entry] = field(default_factory=list)
    order: list[tuple[str, str]] = field(default_factory=list)

    def summary(self) -> Summary:
        """The figures; `str` of them is a page of text."""
        return summarize(self.entries)

    def chart(self) -> str:
        """The chart as an HTML fragment."""
        return page.render_fragment(self.entries, title=self.title, order=self.order)

    def page(self) -> str:
        """The chart as an HTML page."""
        return page.render_page(self.entries, title=self.title, order=self.order)

    def section(self) -> Section:
        """The chart as a section of a memory report: `timeline.save(path, sections=[…])`."""
        return page.make_section(self.entries, title=self.title, order=self.order)

    def to_json(self) -> str:
        """The recording as JSON that `from_json` reads."""
        document = {
            "format": FORMAT,
            "title": self.title,
            "order": self.order,
            "entries": [asdict(entry) for entry in self.entries],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ResidencyRecording:
        """Parse the output of `to_json`. Raises BadInput for anything else."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(document["format"])
            entries = [Entry(**entry) for entry in document["entries"]]
            if not {entry.kind for entry in entries} <= set(KINDS):
                raise ValueError("kind")
            order = [(str(module), str(name)) for module, name in document["order"]]
            return cls(str(document["title"]), entries, order)
        except (ValueError, KeyError, TypeError) as exc:
            raise BadInput(
                "cannot read a residency recording: the text is not one",
                expected=f"JSON of the format {FORMAT!r}, as to_json writes it",
            ) from exc

    def perfetto(self) -> str:
        """Chrome trace JSON, for ui.perfetto.dev and chrome://tracing."""
        return json.dumps(
            {"displayTimeUnit": "ms", "traceEvents": list(_trace(self))}, separators=(",", ":")
        )

    def save(self, path: Path | str) -> Path:
        """Write the page (.html), a trace (.perfetto.json) or the data (.json). Raises BadInput."""
        path = Path(path)
        writers = {
            ".html": self.page,
            ".htm": self.page,
            ".perfetto.json": self.perfetto,
            ".json": self.to_json,
        }
        name = path.name.lower()
        write = next((w for suffix, w in writers.items() if name.endswith(suffix)), None)
        if write is None:
            raise BadInput(
                f"cannot tell from {str(path)!r} what to write",
                expected="a name that ends in .html, .perfetto.json or .json",
            )
        try:
            write_whole(path, write())
        except OSError as exc:
            raise BadInput(
                f"cannot write {str(path)!r}: {exc.strerror}",
                expected="a path in a folder that exists",
            ) from exc
        return path


@contextlib.contextmanager
def recording(group: Group, title: str = "") -> Iterator[ResidencyRecording]:
    """Record the weights of a group in the block. Raises Misuse inside another recording of it."""
    journal = group.journal
    if journal.recording:
        raise Misuse(
            "cannot record the residency of a group twice at once",
            expected="one recording at a time",
            hint="end the block of the other recording first",
        )
    recorded = ResidencyRecording(title)
    before = [
        Entry("keep", name, nbytes, 0.0, 0.0, THERE_BEFORE, journal.name_of(member, member.name))
        for member in group.members
        for name, nbytes in member.kept_bytes().items()
    ]
    try:
        journal.start()
        yield recorded
    finally:
        try:
            for member in group.members:
                member.note_stays()
        finally:
            journal.stop()
        recorded.entries = [*before, *journal.entries()]
        recorded.order = [
            (journal.name_of(member, member.name), name)
            for member in group.members
            for name in member.names()
        ]


# ---- Perfetto


def _trace(recorded: ResidencyRecording) -> Iterator[dict[str, Any]]:
    title = recorded.title or "residency"
    yield {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}}
    for number, name in _LANE_NAMES.items():
        yield {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}}
    kinds = group_by_kind(recorded.entries)
    kinds["stall"] = explain_stalls(recorded.entries)
    for kind, lane in LANES.items():
        for entry in kinds[kind]:
            duration = {"dur": (entry.end_ms - entry.start_ms) * 1000}
            yield {"ph": "X", **_event(entry, lane), **duration}
    for kind in ("keep", "evict", "demand"):
        for entry in kinds[kind]:
            yield {"ph": "i", "s": "p", **_event(entry, 5)}
    yield from _counter(recorded)


def _event(entry: Entry, lane: int) -> dict[str, Any]:
    args = {"bytes": entry.nbytes, "reason": entry.reason, "module": entry.module}
    name = entry.name if lane < 5 else f"{entry.kind} {entry.name}"
    start = {"ts": entry.start_ms * 1000, "args": args}
    return {"pid": 1, "tid": lane, "cat": entry.kind, "name": name, **start}


def _counter(recorded: ResidencyRecording) -> Iterator[dict[str, Any]]:
    """Bytes of kept and of streamed weights on the device over time."""
    for name, value in (("kept", True), ("streamed", False)):
        changes: Counter[float] = Counter()
        for stay in page.find_stays(recorded.entries):
            if stay.kept is value:
                changes[stay.start_ms] += stay.nbytes
                changes[stay.end_ms] -= stay.nbytes
        total = 0
        for at_ms, change in sorted(changes.items()):
            total += change
            about = {"ts": at_ms * 1000, "args": {"bytes": total}}
            yield {"ph": "C", "pid": 1, "name": f"weights {name}", **about}
