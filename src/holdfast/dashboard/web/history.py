"""The main values of past snapshots, in bounded memory.

At most `MOST` points. Older ones are sparser, and each holds the maximum of its interval, so that
no peak gets lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.base.codec import about
from holdfast.dashboard.snapshot.snapshot import Process, Snapshot

TIER = 256  # points per resolution
WIDTHS = (4, 20, 120)  # intervals per point in the coarser tiers
MOST = TIER * (1 + len(WIDTHS))


@dataclass(frozen=True, slots=True)
class PointProcess:
    """What one process used."""

    pid: int = about("its number")
    name: str = about("what it does, in a few words")
    rss_bytes: int = about("host memory")
    devices: dict[str, int] = about("bytes reserved, by device")
    models: dict[str, int] = about("bytes resident, by the id of the model")
    pools: dict[str, int] = about("bytes allocated, by the name of the pool")


@dataclass(frozen=True, slots=True)
class Point:
    """Values at a time, or their maximum in the interval before it."""

    at_s: float = about("when, in seconds since 1970")
    ram_used_bytes: int = about("memory of the machine")
    gpus: tuple[int | None, ...] = about("bytes used of each GPU, in the order of the machine's")
    processes: tuple[PointProcess, ...] = about("Holdfast's processes")


@dataclass(frozen=True, slots=True)
class Points:
    """The past, oldest first."""

    points: tuple[Point, ...] = about("what was used when")


def point(snapshot: Snapshot) -> Point:
    """The point of a snapshot."""
    return Point(
        snapshot.at_s,
        snapshot.machine.ram_used_bytes,
        tuple(gpu.used_bytes for gpu in snapshot.machine.gpus),
        tuple(_process(one) for one in snapshot.processes),
    )


def _process(one: Process) -> PointProcess:
    return PointProcess(
        one.pid,
        one.name,
        one.rss_bytes,
        _sum_by_name((device.name, device.reserved_bytes) for device in one.devices),
        _sum_by_name((model.id, model.resident_bytes) for model in one.models),
        _sum_by_name((pool.name, pool.allocated_bytes) for pool in one.pools),
    )


def _sum_by_name(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, nbytes in pairs:
        sums[name] = sums.get(name, 0) + nbytes
    return sums


def merge(first: Point, second: Point) -> Point:
    """Merge two points: the later time, the maximum of every value."""
    processes = {one.pid: one for one in first.processes}
    for one in second.processes:
        before = processes.get(one.pid)
        processes[one.pid] = one if before is None else _highest_process(before, one)
    gpus = second.gpus
    if len(first.gpus) == len(gpus):  # else one came or went; the indices no longer match
        pairs = zip(first.gpus, gpus, strict=True)
        gpus = tuple(max((n for n in pair if n is not None), default=None) for pair in pairs)
    ram_bytes = max(first.ram_used_bytes, second.ram_used_bytes)
    return Point(second.at_s, ram_bytes, gpus, tuple(processes[pid] for pid in sorted(processes)))


def _highest_process(first: PointProcess, second: PointProcess) -> PointProcess:
    return PointProcess(
        second.pid,
        second.name,
        max(first.rss_bytes, second.rss_bytes),
        _highest_of(first.devices, second.devices),
        _highest_of(first.models, second.models),
        _highest_of(first.pools, second.pools),
    )


def _highest_of(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    names = [*first, *(name for name in second if name not in first)]
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in names}


class History:
    """Points in tiers: the newest at full resolution, older ones coarser, then dropped."""

    def __init__(self, interval_s: float) -> None:
        self._tiers: tuple[deque[Point], ...] = tuple(deque() for _ in range(1 + len(WIDTHS)))
        self._widths_s = tuple(max(interval_s, 1e-3) * width for width in WIDTHS)

    def __len__(self) -> int:
        return sum(len(tier) for tier in self._tiers)

    def add(self, new: Point) -> None:
        """Add a point; the oldest of a full tier moves to the next."""
        self._tiers[0].append(new)
        for number, tier in enumerate(self._tiers):
            if len(tier) <= TIER:
                return
            oldest = tier.popleft()
            if number < len(self._widths_s):
                _put(self._tiers[number + 1], oldest, self._widths_s[number])

    def points(self, since_s: float = 0.0) -> tuple[Point, ...]:
        """Points since `since_s`, oldest first."""
        return tuple(one for tier in reversed(self._tiers) for one in tier if one.at_s >= since_s)


def _put(tier: deque[Point], new: Point, width_s: float) -> None:
    """Append to a tier; merges with the last point if both are in one interval."""
    if tier and tier[-1].at_s // width_s == new.at_s // width_s:
        tier[-1] = merge(tier[-1], new)
    else:
        tier.append(new)
