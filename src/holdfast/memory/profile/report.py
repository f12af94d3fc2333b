"""What a recording shows: the peak, who held it, who allocates most, what was left.

All sizes are requested bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
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
        self.blocks = lifetimes.pair(recording)
        self.totals = lifetimes.totals(recording, self.blocks)
        self.peak_bytes: int = max(self.totals, default=0)
        self.peak_event: int = self.totals.index(self.peak_bytes) if self.totals else -1
        self._locations = [lifetimes.location(stack) for stack in recording.stacks_table]
        self._places = [lifetimes.place_name(place) for place in recording.places_table]
        self._tags = [tag or lifetimes.NO_TAG for tag in recording.tags_table]

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
        return [self._lifetime(row) for row in self._alive(time_ns)]

    def largest(self, n: int = TOP, time_ns: int | None = None) -> list[Lifetime]:
        """The `n` largest blocks alive at a time (default: the peak), largest first."""
        return sorted(self.at(time_ns), key=lambda block: -block.size)[:n]

    def by_location(self, time_ns: int | None = None) -> list[MemoryShare]:
        """Bytes alive at a time (default: the peak) by source line, most first."""
        stacks = self.recording.stacks
        return self._shares(self._alive(time_ns), lambda event: self._locations[stacks[event]])

    def by_tag(self, time_ns: int | None = None) -> list[MemoryShare]:
        """The same by tag."""
        tags = self.recording.tags
        return self._shares(self._alive(time_ns), lambda event: self._tags[tags[event]])

    def by_place(self, time_ns: int | None = None) -> list[MemoryShare]:
        """The same by place."""
        places = self.recording.places
        return self._shares(self._alive(time_ns), lambda event: self._places[places[event]])

    def allocated_by_location(self) -> list[MemoryShare]:
        """Bytes allocated over the whole recording by source line, most first."""
        stacks, every = self.recording.stacks, range(len(self.blocks))
        return self._shares(every, lambda event: self._locations[stacks[event]])

    def left_by_location(self) -> list[MemoryShare]:
        """Bytes still alive when the recording ended by source line, most first."""
        stacks, last = self.recording.stacks, len(self.recording) - 1
        rows = lifetimes.alive_after(self.blocks, last)
        return self._shares(rows, lambda event: self._locations[stacks[event]])

    def _alive(self, time_ns: int | None) -> Iterable[int]:
        if time_ns is None or time_ns == self.peak_ns:
            return lifetimes.alive_after(self.blocks, self.peak_event)
        event = bisect_right(self.recording.times_ns, time_ns) - 1
        return lifetimes.alive_after(self.blocks, event)

    def _lifetime(self, row: int) -> Lifetime:
        return lifetimes.lifetime(self.recording, self.blocks, row)

    def _shares(self, rows: Iterable[int], name: Callable[[int], str]) -> list[MemoryShare]:
        sums: dict[str, list[int]] = {}
        begins, sizes = self.blocks.begins, self.recording.sizes
        for row in rows:
            event = begins[row]
            entry = sums.setdefault(name(event), [0, 0])
            entry[0] += sizes[event]
            entry[1] += 1
        shares = [MemoryShare(key, size, count) for key, (size, count) in sums.items()]
        return sorted(shares, key=lambda share: (-share.bytes, -share.blocks, share.name))

    def summary(self) -> str:
        """A page of text: what happened, the peak and who held it, what was left."""
        parts = [self._head()]
        if any(self.recording.tags_table[tag] for tag in set(self.recording.tags)):
            parts.append(table("at the peak, by tag", self.by_tag(), self.peak_bytes))
        parts += [
            table("at the peak, by place", self.by_place(), self.peak_bytes),
            table("at the peak, by source line", self.by_location(), self.peak_bytes),
            table(
                "allocated in all, by source line", self.allocated_by_location(), self.total_bytes
            ),
            table(
                "still there at the end, by source line", self.left_by_location(), self.end_bytes
            ),
        ]
        if self.recording.notes:
            parts.append("\n".join(["notes", *(f"  {note}" for note in self.recording.notes)]))
        return "\n\n".join(part for part in parts if part)

    def _head(self) -> str:
        recording, count = self.recording, len(self.blocks)
        at_peak = sum(1 for _ in self._alive(None))
        left = sum(1 for _ in lifetimes.alive_after(self.blocks, len(recording) - 1))
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
                "by_place": [share._asdict() for share in self.by_place()],
                "by_tag": [share._asdict() for share in self.by_tag()],
                "by_location": [share._asdict() for share in self.by_location()],
                "largest": [self._block(block) for block in self.largest()],
            },
            "allocated": [share._asdict() for share in self.allocated_by_location()],
            "at_end": [share._asdict() for share in self.left_by_location()],
            "notes": list(self.recording.notes),
        }

    def _block(self, block: Lifetime) -> dict[str, Any]:
        return {
            "bytes": block.size,
            "address": block.address,
            "start_ns": block.start_ns,
            "end_ns": block.end_ns,
            "place": self._places[block.place],
            "tag": self.recording.tags_table[block.tag],
            "location": self._locations[block.stack],
            "stack": [frame._asdict() for frame in self.recording.stacks_table[block.stack]],
        }


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
