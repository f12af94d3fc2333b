"""The figures of a residency recording: link use, stalls and their reasons, evictions.

Times are milliseconds, rates 10^9 bytes per second.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.base.units import format_bytes
from holdfast.residency.recording.journal import KINDS, NOT_ARRIVED, THERE_BEFORE, Entry

LINK_BUSY = "the link was busy"
NO_PLACE = "the link was idle: no free room on the device"
TOP = 10  # rows of each table


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """The stalls or evictions of one layer or reason."""

    name: str
    count: int
    ms: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one recording. `str` of it is a page of text."""

    span_ms: float
    passes: int
    pass_ms: float
    link_busy_ms: float
    copies: int
    link_bytes: int
    decodes: int
    decode_busy_ms: float
    decoded_bytes: int
    stalls: int
    stall_ms: float
    stalls_by_layer: tuple[SummaryRow, ...]
    stalls_by_reason: tuple[SummaryRow, ...]
    kept_bytes: int
    evictions_by_reason: tuple[SummaryRow, ...]
    demand_loads: int
    demand_bytes: int

    @property
    def link_share(self) -> float:
        """The part of the time in which the link copied, 0 to 1."""
        return self.link_busy_ms / self.span_ms if self.span_ms else 0.0

    @property
    def link_gb_s(self) -> float | None:
        """Rate of the link while it copied; None if it never did."""
        return self.link_bytes / self.link_busy_ms / 1e6 if self.link_busy_ms else None

    @property
    def stall_share(self) -> float:
        """The part of the passes spent in stalls, 0 to 1."""
        return self.stall_ms / self.pass_ms if self.pass_ms else 0.0

    @property
    def evictions(self) -> int:
        """The number of evictions."""
        return sum(share.count for share in self.evictions_by_reason)

    def __str__(self) -> str:
        tables = (
            _table("stalls, by reason", self.stalls_by_reason, lambda row: format_ms(row.ms)),
            _table("stalls, by layer", self.stalls_by_layer, lambda row: format_ms(row.ms)),
            _table(
                "evictions, by reason",
                self.evictions_by_reason,
                lambda row: format_bytes(row.nbytes),
            ),
        )
        return "\n\n".join(filter(None, ("\n".join(_head(self)), *tables)))


def summarize(entries: Iterable[Entry]) -> Summary:
    """Sum up the entries of a journal."""
    entries = list(entries)
    kinds = group_by_kind(entries)
    copies, decodes, passes = kinds["copy"], kinds["decode"], kinds["pass"]
    stalls = explain_stalls(entries)
    start, end = find_span(entries)
    several = len({stall.module for stall in stalls}) > 1
    return Summary(
        span_ms=end - start,
        passes=len(passes),
        pass_ms=covered_ms(passes),
        link_busy_ms=covered_ms(copies),
        copies=len(copies),
        link_bytes=sum(e.nbytes for e in copies),
        decodes=len(decodes),
        decode_busy_ms=covered_ms(decodes),
        decoded_bytes=sum(e.nbytes for e in decodes),
        stalls=len(stalls),
        stall_ms=covered_ms(stalls),
        stalls_by_layer=_shares(
            stalls, lambda e: f"{e.module}: {find_layer(e.name)}" if several else find_layer(e.name)
        ),
        stalls_by_reason=_shares(stalls, lambda e: e.reason),
        kept_bytes=sum(e.nbytes for e in kinds["keep"] if e.reason != THERE_BEFORE),
        evictions_by_reason=_shares(kinds["evict"], lambda e: e.reason),
        demand_loads=len(kinds["demand"]),
        demand_bytes=sum(e.nbytes for e in kinds["demand"]),
    )


def group_by_kind(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each kind, by start."""
    found: dict[str, list[Entry]] = {kind: [] for kind in KINDS}
    for entry in sorted(entries, key=lambda e: (e.start_ms, e.end_ms)):
        found[entry.kind].append(entry)
    return found


def find_span(entries: Sequence[Entry]) -> tuple[float, float]:
    """The first start and the last end; (0, 0) without entries."""
    start = min((e.start_ms for e in entries), default=0.0)
    return start, max((e.end_ms for e in entries), default=0.0)


def covered_ms(entries: Sequence[Entry]) -> float:
    """How long at least one entry was active. Entries must be sorted by start."""
    total, until = 0.0, float("-inf")
    for entry in entries:
        total += max(0.0, entry.end_ms - max(entry.start_ms, until))
        until = max(until, entry.end_ms)
    return total


def find_layer(name: str) -> str:
    """The layer of a weight: its path up to the first index, or without its last part."""
    parts = name.split(".")
    indices = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: indices[0] + 1] if indices else parts[:-1]) or name


# ---- reasons of stalls


def explain_stalls(entries: Sequence[Entry]) -> list[Entry]:
    """The stalls, each with its reason: the link was busy, or had nowhere to copy to."""
    kinds = group_by_kind(entries)
    copies = kinds["copy"]  # which never overlap
    starts = [copy.start_ms for copy in copies]

    def explain(stall: Entry) -> str:
        busy_ms, at = 0.0, bisect.bisect_left(starts, stall.end_ms) - 1
        while at >= 0 and copies[at].end_ms > stall.start_ms:
            end_ms = min(copies[at].end_ms, stall.end_ms)
            busy_ms += end_ms - max(copies[at].start_ms, stall.start_ms)
            at -= 1
        return LINK_BUSY if 2 * busy_ms >= stall.end_ms - stall.start_ms else NO_PLACE

    return [
        replace(stall, reason=explain(stall)) if stall.reason == NOT_ARRIVED else stall
        for stall in kinds["stall"]
    ]


# ---- text


def _shares(entries: Iterable[Entry], name: Callable[[Entry], str]) -> tuple[SummaryRow, ...]:
    found: dict[str, SummaryRow] = {}
    for entry in entries:
        key = name(entry)
        old = found.get(key, SummaryRow(key, 0))
        ms = old.ms + entry.end_ms - entry.start_ms
        found[key] = SummaryRow(key, old.count + 1, ms, old.nbytes + entry.nbytes)
    return tuple(sorted(found.values(), key=lambda s: (-s.ms, -s.nbytes, -s.count)))


def format_ms(ms: float) -> str:
    """Milliseconds for a person: "0.12 ms", "43.1 ms", "12.3 s"."""
    if ms < 1:
        return f"{ms:.2f} ms"
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def _head(found: Summary) -> Iterable[str]:
    yield f"recorded  {format_ms(found.span_ms)}, {_count(found.passes, 'pass', 'passes')}"
    rate = found.link_gb_s
    moved = f"{format_bytes(found.link_bytes)} in {_count(found.copies, 'copy', 'copies')}"
    yield (
        f"link      busy {100 * found.link_share:.0f} % of the time, {moved}"
        + ("" if rate is None else f", {rate:.1f} GB/s while busy")
    )
    if found.decodes:
        yield (
            f"decoder   busy {format_ms(found.decode_busy_ms)}, "
            f"{format_bytes(found.decoded_bytes)} unpacked"
        )
    yield (
        f"stalls    {format_ms(found.stall_ms)} in {found.stalls:,}, "
        f"{100 * found.stall_share:.0f} % of the passes"
    )
    if found.kept_bytes:
        yield f"kept      {format_bytes(found.kept_bytes)} loaded to stay"
    if found.demand_loads:
        loads = _count(found.demand_loads, "load", "loads")
        yield f"demand    {loads} of {format_bytes(found.demand_bytes)}"


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _table(title: str, shares: Sequence[SummaryRow], value: Callable[[SummaryRow], str]) -> str:
    if not shares:
        return ""
    lines = [title]
    lines += [f"  {value(s):>9}  {s.count:>6,} ×  {s.name}" for s in shares[:TOP]]
    if len(shares) > TOP:
        rest = shares[TOP:]
        sums = (sum(s.ms for s in rest), sum(s.nbytes for s in rest))
        total = SummaryRow("", sum(s.count for s in rest), *sums)
        lines.append(f"  {value(total):>9}  {total.count:>6,} ×  in {len(rest):,} more")
    return "\n".join(lines)
