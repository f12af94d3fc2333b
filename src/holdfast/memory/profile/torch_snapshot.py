"""torch's memory snapshots (the pickle that memory_viz opens), written and read.

Reading a snapshot runs no code that is in it.
"""

from __future__ import annotations

import io
import pickle
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.memory.profile import lifetimes
from holdfast.memory.profile.recording import Event, Frame, Kind, MemoryPlace, Recording

APART = 2 << 20  # where no segments were recorded: a gap of more bytes begins a new one
_EXPECTED = "the pickle that torch.cuda.memory._dump_snapshot writes, or the dictionary in it"
_TAG = "tag"  # the file name of a frame that stands for a tag
_ACTIONS = {
    "alloc": Kind.ALLOC,
    "free_completed": Kind.FREE,
    "segment_alloc": Kind.RESERVE,
    "segment_map": Kind.RESERVE,
    "segment_free": Kind.RELEASE,
    "segment_unmap": Kind.RELEASE,
}
_TORCH_ACTIONS = {
    Kind.ALLOC: ("alloc",),
    Kind.FREE: ("free_requested", "free_completed"),
    Kind.RESERVE: ("segment_alloc",),
    Kind.RELEASE: ("segment_free",),
}


# ---- to torch


def torch_snapshot(recording: Recording) -> bytes:
    """A pickle for torch's memory_viz. A device keeps its index; the host comes after the last one.

    Places of one device share its trace: they have one address space. A tag becomes the outermost
    frame; torch has no other field for it.
    """
    blocks = recording.pair()
    devices = _devices(recording)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(devices, default=0) + 1)]
    frames = _torch_frames(recording)
    sizes = {end: recording.sizes[b] for b, end in zip(blocks.begins, blocks.ends, strict=True)}
    start_us = int(recording.started_s * 1e6)
    for number, event in enumerate(recording.events()):
        if event.kind == Kind.FREE and number not in sizes:
            continue  # allocated before the recording: torch's tools cannot handle that
        size = sizes[number] if event.kind == Kind.FREE else event.size
        row = {
            "addr": event.address,
            "size": size,
            "stream": 0,
            "time_us": start_us + event.time_ns // 1000,
            "frames": frames(event.stack, event.tag),
        }
        trace = traces[devices[event.place]]
        trace += [{"action": action, **row} for action in _TORCH_ACTIONS[event.kind]]
    document = {
        "segments": [_torch_segment(*segment) for segment in _final_segments(recording, blocks)],
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }
    return pickle.dumps(document, protocol=4)


def _devices(recording: Recording) -> list[int]:
    """For each place, the index of its trace."""
    numbers = [re.search(r":(\d+)$", place.device) for place in recording.places_table]
    known = [None if match is None else int(match[1]) for match in numbers]
    host = 1 + max((number for number in known if number is not None), default=-1)
    return [host if number is None else number for number in known]


def _torch_frames(recording: Recording) -> Callable[[int, int], list[dict[str, Any]]]:
    made: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def frames(stack: int, tag: int) -> list[dict[str, Any]]:
        key = (stack, tag)
        if key not in made:
            below = (Frame(_TAG, 0, recording.tags_table[tag]),) if tag else ()
            made[key] = [
                {"filename": frame.file, "line": frame.line, "name": frame.function}
                for frame in (*recording.stacks_table[stack], *below)
            ]
        return made[key]

    return frames


def _final_segments(
    recording: Recording, blocks: lifetimes.BlockEvents
) -> Iterator[tuple[Recording, int, int, int, list[int]]]:
    """The arguments of `_torch_segment` at the end; loose blocks get one around them."""
    devices, last = _devices(recording), len(recording) - 1
    live = [blocks.begins[row] for row in lifetimes.alive_after(blocks, last)]
    known = [s for s in lifetimes.segments(recording) if s.end == len(recording)]
    for device in sorted(set(devices)):
        events = sorted(
            (e for e in live if devices[recording.places[e]] == device),
            key=lambda e: recording.addresses[e],
        )
        spans = sorted((s.address, s.size) for s in known if devices[s.place] == device)
        for address, size, inside in _spans(recording, spans, events):
            yield recording, device, address, size, inside


def _spans(
    recording: Recording, spans: list[tuple[int, int]], events: list[int]
) -> list[tuple[int, int, list[int]]]:
    starts = [address for address, _ in spans]
    inside: list[list[int]] = [[] for _ in spans]
    loose: list[tuple[int, int, list[int]]] = []
    for event in events:
        address, size = recording.addresses[event], recording.sizes[event]
        at = bisect_right(starts, address) - 1
        if at >= 0 and address + size <= sum(spans[at]):
            inside[at].append(event)
        elif loose and 0 <= address - loose[-1][0] - loose[-1][1] <= APART:
            first, _, own = loose[-1]
            own.append(event)
            loose[-1] = (first, address + size - first, own)
        else:
            loose.append((address, size, [event]))
    return [(*span, own) for span, own in zip(spans, inside, strict=True)] + loose


def _torch_segment(
    recording: Recording, device: int, address: int, size: int, events: list[int]
) -> dict[str, Any]:
    frames = _torch_frames(recording)
    rows: list[dict[str, Any]] = []
    at = address
    for event in events:
        start, length = recording.addresses[event], recording.sizes[event]
        if start < at:
            continue  # two places claim the same bytes: keep the first
        if start > at:
            rows.append(_torch_block(at, start - at, "inactive", []))
        found = frames(recording.stacks[event], recording.tags[event])
        rows.append(_torch_block(start, length, "active_allocated", found))
        at = start + length
    if at < address + size:
        rows.append(_torch_block(at, address + size - at, "inactive", []))
    used = sum(row["size"] for row in rows if row["state"] != "inactive")
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": rows,
    }


def _torch_block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> Any:
    return {
        "address": address,
        "size": size,
        "requested_size": size if state == "active_allocated" else 0,
        "state": state,
        "frames": frames,
    }


# ---- from torch


class _PlainUnpickler(pickle.Unpickler):
    """Reads lists, dictionaries, text and numbers only: a snapshot has nothing else."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds an object of {module_name}.{global_name}")


def from_torch_snapshot(snapshot: bytes | dict[str, Any]) -> Recording:
    """A snapshot of torch's allocator as a recording.

    Blocks that are in the segments but not in the trace (it was switched on later, or its buffer
    was full) begin with the recording. Raises BadInput if it is not a snapshot.
    """
    document: Any = snapshot
    if isinstance(snapshot, bytes):
        try:
            document = _PlainUnpickler(io.BytesIO(snapshot)).load()
        except (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError) as exc:
            raise BadInput(
                f"this is not a torch memory snapshot: {exc}", expected=_EXPECTED
            ) from exc
    if not (isinstance(document, dict) and {"segments", "device_traces"} <= document.keys()):
        raise BadInput("this is not a torch memory snapshot", expected=_EXPECTED)
    try:
        return _Reader(document).read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as exc:
        raise BadInput(
            f"this torch memory snapshot is broken: {type(exc).__name__} {exc}", expected=_EXPECTED
        ) from exc


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.made = Recording(title="torch memory snapshot")
        self.stacks: dict[tuple[Frame, ...], int] = {(): 0}
        self.tags = {"": 0}

    def read(self) -> Recording:
        made, traces = self.made, self.document["device_traces"]
        used = {segment["device"] for segment in self.document["segments"]}
        count = max(len(traces), 1 + max(used, default=-1))
        made.places_table = [MemoryPlace("torch", f"cuda:{number}") for number in range(count)]
        rows = [
            (entry.get("time_us", 0), device, entry)
            for device, trace in enumerate(traces)
            for entry in trace
        ]
        rows.sort(key=lambda row: row[0])  # stable: keeps the order within a device
        first_us = rows[0][0] if rows else 0
        made.started_s = first_us / 1e6
        self._add_existing(rows)
        for time_us, device, entry in rows:
            self._entry((time_us - first_us) * 1000, device, entry)
        made.duration_ns = made.times_ns[-1] if len(made) else 0
        made.stacks_table, made.tags_table = list(self.stacks), list(self.tags)
        return made

    def _entry(self, time_ns: int, device: int, entry: dict[str, Any]) -> None:
        if entry["action"] == "oom":
            self.made.notes.append(f"cuda:{device} ran out of memory for {entry['size']} bytes")
        kind = _ACTIONS.get(entry["action"])
        if kind is not None:
            stack, tag = self._stack(entry.get("frames", [])) if kind == Kind.ALLOC else (0, 0)
            self.made.add(Event(time_ns, kind, entry["addr"], entry["size"], stack, device, tag))

    def _stack(self, frames: list[dict[str, Any]]) -> tuple[int, int]:
        """The indices of a stack and of the tag that `torch_snapshot` may have put below it."""
        tag = ""
        if frames and (frames[-1]["filename"], frames[-1]["line"]) == (_TAG, 0):
            *frames, below = frames
            tag = below["name"]
        stack = tuple(Frame(f["filename"], f["line"], f["name"]) for f in frames)
        return (
            self.stacks.setdefault(stack, len(self.stacks)),
            self.tags.setdefault(tag, len(self.tags)),
        )

    def _add_existing(self, rows: list[tuple[int, int, dict[str, Any]]]) -> None:
        """Add what existed when the trace began, derived from what exists at its end."""
        seen: dict[tuple[int, int, bool], Kind] = {}
        last: dict[tuple[int, int, bool], int] = {}
        for _, device, entry in rows:
            kind = _ACTIONS.get(entry["action"])
            if kind is not None:
                key = (device, entry["addr"], kind >= Kind.RESERVE)
                seen.setdefault(key, kind)
                last[key] = entry["size"]
        found = {key: last[key] for key, kind in seen.items() if kind in (Kind.FREE, Kind.RELEASE)}
        stacks: dict[tuple[int, int, bool], tuple[int, int]] = {}
        pieces = sorted(key[:2] for key in seen if key[2])
        for segment in self.document["segments"]:
            device = segment["device"]
            start, size = segment["address"], segment["total_size"]
            # If parts of it were seen, as for an expandable segment, those are enough.
            if bisect_left(pieces, (device, start)) == bisect_left(pieces, (device, start + size)):
                found[device, start, True] = size
            for row in _with_addresses(segment):
                key = (device, row["address"], False)
                if row["state"].startswith("active") and key not in seen:
                    found[key] = row["size"]
                    stacks[key] = self._stack(row.get("frames", []))
        for key, size in sorted(found.items(), key=lambda item: (not item[0][2], item[0])):
            device, address, reserved = key
            kind = Kind.RESERVE if reserved else Kind.ALLOC
            stack, tag = stacks.get(key, (0, 0))
            self.made.add(Event(0, kind, address, size, stack, device, tag))


def _with_addresses(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The blocks of a segment; older versions of torch leave out their addresses."""
    address = segment["address"]
    for row in segment["blocks"]:
        yield {"address": address, **row}
        address += row["size"]
