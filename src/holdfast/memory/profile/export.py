"""A recording for other tools: Chrome trace JSON (Perfetto) and collapsed stacks (flamegraph.pl,
speedscope). The two functions of `torch_snapshot` are offered here as well.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any, Literal

from holdfast.base.errors import BadInput
from holdfast.memory.profile import lifetimes
from holdfast.memory.profile.recording import Frame, Recording
from holdfast.memory.profile.report import Report
from holdfast.memory.profile.torch_snapshot import from_torch_snapshot, torch_snapshot

__all__ = ["collapse_stacks", "from_torch_snapshot", "perfetto", "torch_snapshot"]

LARGE = 2000  # blocks with a line of their own in Perfetto; more would hide the counters


def perfetto(recording: Recording) -> str:
    """Chrome trace JSON: a counter for each place, the sampled series, and the largest blocks."""
    report = Report(recording)
    rows: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": recording.title or "memory"}}
    ]
    rows += _counters(recording, report)
    for name, (times, values) in recording.series.items():
        rows += [_counter(name, t, v) for t, v in zip(times, values, strict=True)]
    sizes = [recording.sizes[begin] for begin in report.blocks.begins]
    largest = sorted(range(len(sizes)), key=lambda row: -sizes[row])[:LARGE]
    for number, row in enumerate(sorted(largest)):
        rows += _slice(recording, report.blocks, row, number)
    document = {"displayTimeUnit": "ms", "traceEvents": rows}
    return json.dumps(document, separators=(",", ":"))


def _counters(recording: Recording, report: Report) -> Iterator[dict[str, Any]]:
    blocks = report.blocks
    by_place: dict[int, list[int]] = {}
    for row, begin in enumerate(blocks.begins):
        by_place.setdefault(recording.places[begin], []).append(row)
    for place, rows in sorted(by_place.items()):
        values = lifetimes.totals(recording, blocks, rows)
        name = lifetimes.place_name(recording.places_table[place])
        before = -1
        for time_ns, value in zip(recording.times_ns, values, strict=True):
            if value != before:
                yield _counter(name, time_ns, value)
            before = value


def _counter(name: str, time_ns: int, value: int) -> dict[str, Any]:
    args = {"bytes": value}
    return {"ph": "C", "pid": 1, "name": name, "ts": time_ns / 1000, "args": args}


def _slice(
    recording: Recording, blocks: lifetimes.BlockEvents, row: int, number: int
) -> list[dict[str, Any]]:
    block = recording.lifetime(blocks, row)
    stack = recording.stacks_table[block.stack]
    common = {"cat": "block", "id": number, "pid": 1, "tid": 1, "name": lifetimes.location(stack)}
    args = {
        "bytes": block.size,
        "address": hex(block.address),
        "place": lifetimes.place_name(recording.places_table[block.place]),
        "tag": recording.tags_table[block.tag],
        "stack": [f"{f.file}:{f.line} in {f.function}" for f in stack],
    }
    end_ns = recording.duration_ns if block.end_ns is None else block.end_ns
    return [
        {"ph": "b", "ts": block.start_ns / 1000, "args": args, **common},
        {"ph": "e", "ts": max(end_ns, block.start_ns) / 1000, **common},
    ]


def collapse_stacks(recording: Recording, at: Literal["peak", "total", "end"] = "peak") -> str:
    """A line for each stack, `root;…;leaf bytes`, alive at the peak or the end, or in total."""
    report = Report(recording)
    rows = {
        "peak": lambda: lifetimes.alive_after(report.blocks, report.peak_event),
        "end": lambda: lifetimes.alive_after(report.blocks, len(recording) - 1),
        "total": lambda: iter(range(len(report.blocks))),
    }.get(at)
    if rows is None:
        raise BadInput(f"cannot collapse stacks at {at!r}", expected='"peak", "total" or "end"')
    sums = array("q", bytes(8 * len(recording.stacks_table)))
    for row in rows():
        begin = report.blocks.begins[row]
        sums[recording.stacks[begin]] += recording.sizes[begin]
    lines = (
        f"{_line(recording.stacks_table[stack])} {size}" for stack, size in enumerate(sums) if size
    )
    return "".join(f"{line}\n" for line in sorted(lines))


def _line(stack: tuple[Frame, ...]) -> str:
    if not stack:
        return lifetimes.NO_STACK
    names = (f"{frame.function} ({frame.file}:{frame.line})" for frame in reversed(stack))
    return ";".join(re.sub(r"[;\n\r]", "_", name) for name in names)
