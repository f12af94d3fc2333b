"""What a recording shows: the peak, who held it, who allocates most, what was left.

All sizes are requested bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.base.units import format_bytes
from holdfast.memory.profile import lifetimes
from holdfast.memory.profile.recording import Lifetime, Recording

TOP = 10  # rows of each table of the summary


class MemoryShare(NamedTuple):
    """The bytes and blocks of one source line, tag or place."""

    name: str
    bytes: int
    blocks: int


class Report:
    """A recording added up. `peak_event` is the event after which most bytes were alive."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.blocks = recording.pair()
        self.totals = lifetimes.totals(recording, self.blocks)
        self.peak_bytes: int = max(self.totals, default=0)
        self.peak_event: int = self.totals.index(self.peak_bytes) if self.totals else -1
        locations = [lifetimes.location(stack) for stack in recording.stacks_table]
        places = [lifetimes.place_name(place) for place in recording.places_table]
        tags = [tag or lifetimes.NO_TAG for tag in recording.tags_table]
        # The names of a table, and the column of the events that points into it.
        self.names = {
            "location": (locations, recording.stacks),
            "place": (places, recording.places),
            "tag": (tags, recording.tags),
        }

    @property
    def peak_ns(self) -> int:
        """When the peak was first reached; 0 if nothing was recorded."""
        return self.recording.times_ns[self.peak_event] if self.totals else 0

    @property
    def end_bytes(self) -> int:
        """Bytes alive when the recording ended."""
        return self.totals[-1] if self.totals else 0

    @property
    def total_bytes(self) -> int:
        """Bytes allocated over the whole recording."""
        return sum(self.recording.sizes[begin] for begin in self.blocks.begins)

    @property
    def rss_peak(self) -> tuple[int, int] | None:
        """(time_ns, bytes) of the most resident memory sampled; None if it was not sampled."""
        times, values = self.recording.series.get("rss", ((), ()))
        return max(zip(times, values, strict=True), key=lambda s: (s[1], -s[0]), default=None)

    def at(self, time_ns: int | None = None) -> list[Lifetime]:
        """The blocks alive at a time (default: the peak), oldest first.

        Events of the same nanosecond count, except at the peak: there it is the peak itself.
        """
        return [self.recording.lifetime(self.blocks, row) for row in self._alive(time_ns)]

    def largest(self, n: int = TOP, time_ns: int | None = None) -> list[Lifetime]:
        """The `n` largest blocks alive at a time (default: the peak), largest first."""
        return sorted(self.at(time_ns), key=lambda block: -block.size)[:n]

    def by_location(self, time_ns: int | None = None) -> list[MemoryShare]:
        """Bytes alive at a time (default: the peak) by source line, most first."""
        return self._shares("location", self._alive(time_ns))

    def by_tag(self, time_ns: int | None = None) -> list[MemoryShare]:
        """The same by tag."""
        return self._shares("tag", self._alive(time_ns))

    def by_place(self, time_ns: int | None = None) -> list[MemoryShare]:
        """The same by place."""
        return self._shares("place", self._alive(time_ns))

    def allocated_by_location(self) -> list[MemoryShare]:
        """Bytes allocated over the whole recording by source line, most first."""
        return self._shares("location", range(len(self.blocks)))

    def left_by_location(self) -> list[MemoryShare]:
        """Bytes still alive when the recording ended by source line, most first."""
        return self._shares("location", self._left())

    def _left(self) -> Iterable[int]:
        return lifetimes.alive_after(self.blocks, len(self.recording) - 1)

    def _alive(self, time_ns: int | None) -> Iterable[int]:
        event = self.peak_event
        if time_ns is not None and time_ns != self.peak_ns:
            event = bisect_right(self.recording.times_ns, time_ns) - 1
        return lifetimes.alive_after(self.blocks, event)

    def _shares(self, by: str, rows: Iterable[int]) -> list[MemoryShare]:
        sums: dict[str, list[int]] = {}
        names, column = self.names[by]
        begins, sizes = self.blocks.begins, self.recording.sizes
        for row in rows:
            event = begins[row]
            entry = sums.setdefault(names[column[event]], [0, 0])
            entry[0] += sizes[event]
            entry[1] += 1
        shares = [MemoryShare(key, size, count) for key, (size, count) in sums.items()]
        return sorted(shares, key=lambda share: (-share.bytes, -share.blocks, share.name))

    def summary(self) -> str:
        """A page of text: what happened, the peak and who held it, what was left."""
        tagged = any(self.recording.tags_table[tag] for tag in set(self.recording.tags))
        allocated, left = self.allocated_by_location(), self.left_by_location()
        parts = [
            self._head(),
            table("at the peak, by tag", self.by_tag() if tagged else [], self.peak_bytes),
            table("at the peak, by place", self.by_place(), self.peak_bytes),
            table("at the peak, by source line", self.by_location(), self.peak_bytes),
            table("allocated in all, by source line", allocated, self.total_bytes),
            table("still there at the end, by source line", left, self.end_bytes),
        ]
        if self.recording.notes:
            parts.append("\n".join(["notes", *(f"  {note}" for note in self.recording.notes)]))
        return "\n\n".join(part for part in parts if part)

    def _head(self) -> str:
        recording, count = self.recording, len(self.blocks)
        at_peak = sum(1 for _ in self._alive(None))
        left = sum(1 for _ in self._left())
        lines = [
            recording.title or "memory recording",
            f"recorded  {format_ns(recording.duration_ns)}, {len(recording):,} events, "
            f"{_count_blocks(count)}, {format_bytes(self.total_bytes)} allocated",
            f"peak      {format_bytes(self.peak_bytes)} in {_count_blocks(at_peak)}, "
            f"{format_ns(self.peak_ns)} after the start",
            f"at end    {format_bytes(self.end_bytes)} in {_count_blocks(left)}",
        ]
        if self.rss_peak is not None:
            time_ns, size = self.rss_peak
            lines.append(
                f"process   {format_bytes(size)} resident at most, "
                f"{format_ns(time_ns)} after the start"
            )
        if not count:
            lines.append(
                "note      no block came from NumPy, torch or a pool of Holdfast; "
                "Python's own objects are not recorded"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The content of the summary and more, for JSON."""
        rss = self.rss_peak
        return {
            "title": self.recording.title,
            "started_s": self.recording.started_s,
            "duration_ns": self.recording.duration_ns,
            "events": len(self.recording),
            "blocks": len(self.blocks),
            "peak_bytes": self.peak_bytes,
            "peak_ns": self.peak_ns,
            "end_bytes": self.end_bytes,
            "total_bytes": self.total_bytes,
            "rss_peak_bytes": None if rss is None else rss[1],
            "rss_peak_ns": None if rss is None else rss[0],
            "at_peak": {
                "by_place": _rows(self.by_place()),
                "by_tag": _rows(self.by_tag()),
                "by_location": _rows(self.by_location()),
                "largest": [self._block(block) for block in self.largest()],
            },
            "allocated": _rows(self.allocated_by_location()),
            "at_end": _rows(self.left_by_location()),
            "notes": list(self.recording.notes),
        }

    def _block(self, block: Lifetime) -> dict[str, Any]:
        return {
            "bytes": block.size,
            "address": block.address,
            "start_ns": block.start_ns,
            "end_ns": block.end_ns,
            "place": self.names["place"][0][block.place],
            "tag": self.recording.tags_table[block.tag],
            "location": self.names["location"][0][block.stack],
            "stack": [frame._asdict() for frame in self.recording.stacks_table[block.stack]],
        }


def _rows(shares: list[MemoryShare]) -> list[dict[str, Any]]:
    return [share._asdict() for share in shares]


def table(title: str, shares: list[MemoryShare], whole: int) -> str:
    """The first rows of `shares` under a title; an empty text if there are none."""
    if not shares:
        return ""
    lines = [title]
    for share in shares[:TOP]:
        part = f"{100 * share.bytes / whole:.0f} %" if whole else ""
        size, count = format_bytes(share.bytes), _count_blocks(share.blocks)
        lines.append(f"  {size:>9} {part:>6}  {count:>14}  {share.name}")
    rest = shares[TOP:]
    if rest:
        size = format_bytes(sum(share.bytes for share in rest))
        lines.append(f"  {size:>9}         {'':>14}  in {len(rest):,} more")
    return "\n".join(lines)


def format_ns(time_ns: int) -> str:
    """Nanoseconds as text: "812 µs", "43.1 ms", "12.3 s", "4 min 10 s"."""
    if time_ns < 10**6:
        return f"{time_ns / 10**3:.0f} µs"
    if time_ns < 10**9:
        return f"{time_ns / 10**6:.1f} ms"
    if time_ns < 60 * 10**9:
        return f"{time_ns / 10**9:.2f} s"
    return f"{time_ns // (60 * 10**9)} min {time_ns // 10**9 % 60} s"


def _count_blocks(count: int) -> str:
    return f"{count:,} block" + ("" if count == 1 else "s")
