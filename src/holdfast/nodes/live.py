"""Memory now, for clients that poll it: RAM, devices, models, the running node, peaks of nodes.

The sampler's thread ends by itself `LEASE_S` seconds after the last request. One snapshot took
0.7 ms on two slow cores without a GPU.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

from holdfast.base.codec import encode
from holdfast.nodes import xla
from holdfast.nodes.host import following, models, server
from holdfast.nodes.memory.sampling import INTERVAL_S, Sample, Sampler
from holdfast.topology.control_groups import memory_limit

LEASE_S = 5.0
MOST_RECENT = 60  # points in one snapshot


@dataclass(frozen=True, slots=True)
class Ram:
    """Memory of the machine, or of the control group if that has a limit."""

    used_bytes: int
    total_bytes: int
    process_bytes: int  # of this process


@dataclass(frozen=True, slots=True)
class Device:
    """Memory of a device."""

    name: str
    label: str | None  # the vendor's name
    used_bytes: int  # by all processes
    total_bytes: int
    allocated_bytes: int  # in tensors of this process
    reserved_bytes: int  # by torch, its cache included


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model."""

    name: str
    device: str
    device_bytes: int
    offloaded_bytes: int
    keeper: str  # "comfyui" or "holdfast"


@dataclass(frozen=True, slots=True)
class Working:
    """The running prompt and its node."""

    prompt: str
    node: str | None
    kind: str | None
    done: float | None  # steps
    total: float | None


@dataclass(frozen=True, slots=True)
class NodePeak:
    """The most that was in use while a node ran."""

    node: str
    kind: str | None
    ram_bytes: int
    device_bytes: int | None
    above_bytes: int  # above the level when the node began
    seconds: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of the nodes of the last prompt, highest first."""

    prompt: str | None = None
    nodes: tuple[NodePeak, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """The peaks in a short stretch of time."""

    at_s: float
    ram_bytes: int  # of this process
    device_bytes: int | None  # used by all processes, on all devices


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory at `at_s`, in seconds of `time.monotonic()`."""

    at_s: float
    process: int  # its id; another one is another ComfyUI
    ram: Ram
    devices: tuple[Device, ...]
    pinned_bytes: int
    models: tuple[Model, ...]
    working: Working | None
    prompts: int  # running or waiting
    peaks: Peaks
    recent: tuple[Point, ...]  # since the requested time

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return encode(self)


class Live:
    """Takes snapshots. Each keeps a sampler running for `lease_s` seconds more. Thread-safe."""

    def __init__(self, lease_s: float = LEASE_S, interval_s: float = INTERVAL_S) -> None:
        self._lease_s = lease_s
        self._interval_s = interval_s
        self._end_s = 0.0
        self._sampler: Sampler | None = None
        self._peaks = Peaks()
        self._lock = threading.Lock()

    def look(self, since_s: float | None = None) -> Snapshot:
        """Memory now, and samples since `since_s`, the `at_s` of an earlier snapshot."""
        sampler = self.begin()
        now = sampler.sample()
        return Snapshot(
            at_s=now.at_s,
            process=os.getpid(),
            ram=_ram(now),
            devices=_devices(now),
            pinned_bytes=now.pinned_bytes,
            models=list_models(),
            working=_working(now),
            prompts=server.prompts(following.server()),
            peaks=self.peaks(),
            recent=recent(sampler.samples, since_s),
        )

    def begin(self) -> Sampler:
        """Start the sampler if needed; it runs for `lease_s` seconds more."""
        with self._lock:
            self._end_s = time.monotonic() + self._lease_s
            if self._sampler is None or not self._sampler.running:
                self._keep_peaks()
                self._sampler = Sampler(self._interval_s, until=self._is_over).start()
            return self._sampler

    def peaks(self) -> Peaks:
        """The peaks of the last prompt that was sampled."""
        with self._lock:
            self._keep_peaks()
            return self._peaks

    @property
    def watching(self) -> bool:
        """Whether a sampler runs."""
        sampler = self._sampler
        return sampler is not None and sampler.running

    def close(self) -> None:
        """End the sampler now."""
        with self._lock:
            if self._sampler is not None:
                self._sampler.stop()

    def _keep_peaks(self) -> None:
        found = _peaks(self._sampler)
        if found.nodes:
            self._peaks = found

    def _is_over(self, sample: Sample) -> bool:
        return sample.at_s > self._end_s


def list_models() -> tuple[Model, ...]:
    """The loaded models of ComfyUI and of the TPU nodes, largest first."""
    found = [
        Model(one.name, one.device, one.on_device_bytes, one.offloaded_bytes, "comfyui")
        for one in models.list_loaded()
    ]
    for name, held_bytes in xla.list_loaded():
        found.append(Model(name, "xla", held_bytes, 0, "holdfast"))
    return tuple(sorted(found, key=lambda one: -(one.device_bytes + one.offloaded_bytes)))


def recent(samples: list[Sample], since_s: float | None) -> tuple[Point, ...]:
    """At most `MOST_RECENT` points for the samples after `since_s`; peaks are kept."""
    wanted = [] if since_s is None else [one for one in samples if one.at_s > since_s]
    size = max(1, -(-len(wanted) // MOST_RECENT))
    return tuple(_point(wanted[at : at + size]) for at in range(0, len(wanted), size))


def _point(samples: list[Sample]) -> Point:
    used = [sum(one.used_bytes for one in sample.devices) for sample in samples if sample.devices]
    highest = max(sample.ram_bytes for sample in samples)
    return Point(samples[-1].at_s, highest, max(used, default=None))


def _ram(now: Sample) -> Ram:
    total, limit = psutil.virtual_memory().total, memory_limit()
    total = total if limit is None else min(total, limit)
    return Ram(max(0, total - now.ram_free_bytes), total, now.ram_bytes)


def _devices(now: Sample) -> tuple[Device, ...]:
    return tuple(
        Device(
            d.name,
            server.device_name(d.name),
            d.used_bytes,
            d.total_bytes,
            d.allocated_bytes,
            d.reserved_bytes,
        )
        for d in now.devices
    )


def _working(now: Sample) -> Working | None:
    if now.prompt is None:
        return None
    running = following.running()
    done, total = following.step() or (None, None)
    return Working(now.prompt, running.node, running.kind, done, total)


def _peaks(sampler: Sampler | None) -> Peaks:
    if sampler is None or not (spans := sampler.nodes):
        return Peaks()
    prompt = spans[-1].prompt
    kinds = {span.node: span.kind for span in spans if span.prompt == prompt}
    nodes = [
        NodePeak(
            p.node,
            kinds.get(p.node),
            p.ram_bytes,
            p.device_bytes,
            p.above_bytes,
            round(p.seconds, 3),
        )
        for p in sampler.peaks(prompt).values()
    ]
    return Peaks(prompt, tuple(sorted(nodes, key=lambda p: (-(p.device_bytes or 0), -p.ram_bytes))))
