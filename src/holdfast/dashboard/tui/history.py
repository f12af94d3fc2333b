"""Samples of memory over time, of the machine and of every process, in bounded memory.

A track keeps at most `MOST` samples: older ones get sparser, but the peaks of RAM, devices and
pools are kept.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.base.series import thin
from holdfast.dashboard.snapshot.snapshot import Process, Snapshot

MOST = 2400  # twenty minutes at two samples a second without thinning
Named = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MachineSample:
    """Memory of the machine at one moment, in seconds since 1970."""

    at_s: float
    ram_bytes: int
    gpus: tuple[int | None, ...]  # in the order of the snapshot
    devices: int | None  # on devices, sum over Holdfast's processes; None without devices

    @property
    def device_bytes(self) -> int | None:
        """On all GPUs; without a driver, the sum over Holdfast's processes."""
        known = [count for count in self.gpus if count is not None]
        return sum(known) if known else self.devices


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Memory of one process at one moment, in seconds since 1970."""

    at_s: float
    ram_bytes: int
    devices: Named  # reserved by it
    used: Named  # of these devices, by anybody
    pools: Named  # allocated
    models: Named  # resident
    stage: str | None

    @property
    def device_bytes(self) -> int | None:
        """On all its devices."""
        return sum(count for _, count in self.devices) if self.devices else None


S = TypeVar("S", MachineSample, ProcessSample)


def machine_sample(snapshot: Snapshot) -> MachineSample:
    """The sample of a snapshot's machine."""
    devices = [one.reserved_bytes for process in snapshot.processes for one in process.devices]
    return MachineSample(
        at_s=snapshot.at_s,
        ram_bytes=snapshot.machine.ram_used_bytes,
        gpus=tuple(gpu.used_bytes for gpu in snapshot.machine.gpus),
        devices=sum(devices) if devices else None,
    )


def process_sample(at_s: float, process: Process) -> ProcessSample:
    """The sample of a process."""
    devices = process.devices
    return ProcessSample(
        at_s=at_s,
        ram_bytes=process.rss_bytes,
        devices=tuple((one.name, one.reserved_bytes) for one in devices),
        used=tuple((one.name, one.used_bytes) for one in devices if one.used_bytes is not None),
        pools=_number_duplicates((one.name, one.allocated_bytes) for one in process.pools),
        models=_number_duplicates((one.name, one.resident_bytes) for one in process.models),
        stage=process.run.stage if process.run else None,
    )


def _number_duplicates(named: Iterable[tuple[str, int]]) -> Named:
    seen: Counter[str] = Counter()
    found = []
    for name, count in named:
        seen[name] += 1
        found.append((name if seen[name] == 1 else f"{name} ({seen[name]})", count))
    return tuple(found)


class Track(Generic[S]):
    """Samples of one subject, oldest first. Peaks of `figures` are never thinned out."""

    def __init__(self, *figures: Callable[[S], int], most: int = MOST) -> None:
        self._figures = figures
        self._most = max(most, 8 * len(figures))
        self._samples: list[S] = []

    def add(self, sample: S) -> None:
        self._samples.append(sample)
        if len(self._samples) >= self._most:
            self._samples = thin(self._samples, *self._figures)

    @property
    def samples(self) -> Sequence[S]:
        """All that are kept."""
        return self._samples

    def columns(
        self, figure: Callable[[S], int | None], count: int, span_s: float, now_s: float
    ) -> list[int | None]:
        """The maximum in each of `count` intervals of the last `span_s` seconds, or None.

        An interval without a sample between two others repeats the previous one.
        """
        found: list[int | None] = [None] * count
        for sample in reversed(self._samples):
            at = count - 1 - int((now_s - sample.at_s) / span_s * count)
            if at < 0:
                break
            value = figure(sample)
            if value is not None and at < count:
                found[at] = max(found[at] or 0, value)
        return _fill_gaps(found)


def _fill_gaps(values: list[int | None]) -> list[int | None]:
    last = max((at for at, value in enumerate(values) if value is not None), default=-1)
    for at in range(1, last):
        if values[at] is None:
            values[at] = values[at - 1]
    return values


def machine_track(gpus: int) -> Track[MachineSample]:
    """For a machine with so many GPUs."""

    def gpu(number: int, sample: MachineSample) -> int:
        return (sample.gpus[number] if number < len(sample.gpus) else None) or 0

    return Track(_ram, _device, *(functools.partial(gpu, number) for number in range(gpus)))


def process_track() -> Track[ProcessSample]:
    """For one process."""
    return Track(_ram, _device, lambda sample: sum(count for _, count in sample.pools))


def _ram(sample: MachineSample | ProcessSample) -> int:
    return sample.ram_bytes


def _device(sample: MachineSample | ProcessSample) -> int:
    return sample.device_bytes or 0
