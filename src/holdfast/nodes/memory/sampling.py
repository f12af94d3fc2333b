"""`Sampler`: memory over time, and the peaks of each node of a prompt.

Sampling creates no CUDA context and only reads from ComfyUI. A sampler keeps a bounded number of
samples, and thinning them keeps the peaks. Its thread is a daemon. One sample took 120 µs on a slow
core without a GPU: 0.25 % of that core at the default interval.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from holdfast.base import series
from holdfast.memory.profile.samples import rss_bytes
from holdfast.nodes.host import following, models
from holdfast.nodes.refusing import free_bytes

THREAD = "holdfast nodes"
INTERVAL_S = 0.05
MOST = 4096  # samples kept; beyond that the older half is thinned
MOST_SPANS = 2000
MOST_PROMPTS = 8  # prompts whose peaks are kept
RAM = "ram"  # key in Marks
_PINNED = "holdfast.residency.model_management.models.pinned"
Marks = dict[str, int]  # high-water marks in bytes, by device or RAM


class Device(NamedTuple):
    """Memory of one device that torch has used."""

    name: str
    allocated_bytes: int  # in tensors
    reserved_bytes: int  # by torch: tensors and cache
    used_bytes: int  # by all processes
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one time, in seconds of `time.monotonic()`."""

    at_s: float
    ram_bytes: int  # of this process
    ram_free_bytes: int  # that this process can still get
    devices: tuple[Device, ...]  # empty if torch has used none
    pinned_bytes: int
    node: str | None = None
    prompt: str | None = None

    @property
    def device_bytes(self) -> int | None:
        """Bytes in tensors on all devices; None without a device."""
        return sum(one.allocated_bytes for one in self.devices) if self.devices else None


@dataclass(frozen=True, slots=True)
class Span:
    """One run of a node; `ended_s` is None while it runs."""

    node: str
    kind: str | None
    prompt: str | None
    began_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was in use while a node ran."""

    node: str
    ram_bytes: int
    device_bytes: int | None  # in tensors; None without a device
    above_bytes: int  # above the level when the node began: of devices, or of RAM without one
    seconds: float

    @property
    def most_bytes(self) -> int:
        """On devices, or in RAM without one."""
        return self.ram_bytes if self.device_bytes is None else self.device_bytes


def take() -> Sample:
    """Memory now, and the node that runs."""
    return _take_with_marks(following.running())[0]


def _take_with_marks(running: following.Running) -> tuple[Sample, Marks]:
    """A sample, and the high-water marks of RAM and, as torch counts, of each device."""
    devices, marks = _devices()
    sample = Sample(
        at_s=time.monotonic(),
        ram_bytes=rss_bytes(),
        ram_free_bytes=free_bytes(),
        devices=devices,
        pinned_bytes=pinned_bytes(),
        node=running.node,
        prompt=running.prompt,
    )
    return sample, marks | {RAM: highest_ram_bytes()}


def pinned_bytes() -> int:
    """Host memory that ComfyUI and Holdfast have pinned."""
    ours = getattr(sys.modules.get(_PINNED), "total_pinned_bytes", None)
    return models.pinned_bytes() + (ours() if ours is not None else 0)


def _devices() -> tuple[tuple[Device, ...], Marks]:
    """The devices torch has used, and their high-water marks; queries no other device."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return (), {}
    found: list[Device] = []
    marks: Marks = {}
    for number in range(cuda.device_count()):
        counted = cuda.memory_stats_as_nested_dict(number)
        reserved = counted["reserved_bytes"]["all"] if counted else {}
        # cudaMallocAsync, ComfyUI's choice, leaves what was allocated in all at 0.
        if not any(reserved.get(figure) for figure in ("current", "peak", "allocated")):
            continue  # mem_get_info would create a context on it
        free, total = cuda.mem_get_info(number)
        name, allocated = f"cuda:{number}", counted["allocated_bytes"]["all"]
        marks[name] = allocated["peak"]
        found.append(Device(name, allocated["current"], reserved["current"], total - free, total))
    return tuple(found), marks


def highest_ram_bytes() -> int:
    """The peak RSS of this process by the kernel; 0 on other systems."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Highest:
    """Uses the high-water marks of torch and the kernel for the time between two samples."""

    def __init__(self) -> None:
        self._known: Marks = {}

    def apply(self, sample: Sample, marks: Marks) -> Sample:
        """The sample with the peaks since the last one: a mark that rose, or the current value."""
        before, self._known = self._known, marks

        def most(name: str, now: int) -> int:
            rose = name in before and marks.get(name, 0) > before[name]
            return max(marks[name], now) if rose else now

        devices = tuple(
            one._replace(allocated_bytes=most(one.name, one.allocated_bytes))
            for one in sample.devices
        )
        ram_bytes = most(RAM, sample.ram_bytes)
        return dataclasses.replace(sample, ram_bytes=ram_bytes, devices=devices)


class _Peaks:
    """Peaks by node, for the last few prompts."""

    def __init__(self) -> None:
        self._prompts: dict[str | None, dict[str, Peak]] = {}
        self._base: dict[tuple[str | None, str], int] = {}

    def begin(self, sample: Sample, before: Sample | None) -> None:
        """Note that a node begins; its base level is the lower of the two samples around that."""
        same = before is not None and before.prompt == sample.prompt
        level = min(_level(sample), _level(before)) if same and before else _level(sample)
        self._base.setdefault((sample.prompt, str(sample.node)), level)
        self._prompts.setdefault(sample.prompt, {})
        while len(self._prompts) > MOST_PROMPTS:
            old = next(iter(self._prompts))
            del self._prompts[old]
            self._base = {one: base for one, base in self._base.items() if one[0] != old}

    def add(self, sample: Sample, spent_s: float) -> None:
        """Add the peaks in `sample` to its node, which ran for `spent_s` more."""
        node = str(sample.node)
        peaks = self._prompts.setdefault(sample.prompt, {})
        old = peaks.get(node) or Peak(node, 0, None, 0, 0.0)
        level = _level(sample)
        above = level - self._base.get((sample.prompt, node), level)
        known = [b for b in (old.device_bytes, sample.device_bytes) if b is not None]
        peaks[node] = Peak(
            node=node,
            ram_bytes=max(old.ram_bytes, sample.ram_bytes),
            device_bytes=max(known, default=None),
            above_bytes=max(old.above_bytes, above),
            seconds=old.seconds + spent_s,
        )

    def of(self, prompt: str | None) -> dict[str, Peak]:
        """The peaks of a prompt (default: the last), by node id."""
        if prompt is None and self._prompts:
            prompt = next(reversed(self._prompts))
        return dict(self._prompts.get(prompt, {}))


def _level(sample: Sample) -> int:
    return sample.ram_bytes if sample.device_bytes is None else sample.device_bytes


class Sampler:
    """Samples memory about every `interval_s` seconds from `start` to `stop`. Thread-safe.

        with Sampler() as sampler:
            work()
        print(max(sample.ram_bytes for sample in sampler.samples))

    `until(sample)` is called with each sample; True ends the sampler. A sampler runs once.
    """

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        until: Callable[[Sample], bool] | None = None,
        most: int = MOST,
    ) -> None:
        self.interval_s = interval_s
        self._until = until
        self._most = max(most, 8)
        self._samples: list[Sample] = []
        self._last: Sample | None = None
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._peaks = _Peaks()
        self._highest = _Highest()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- begin and end

    def start(self) -> Self:
        """Take a first sample and start the thread. A second call does nothing."""
        if self._thread is None and not self._ended.is_set():
            self.sample()
            self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread and take a last sample. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self.sample()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._thread is not None and not self._ended.is_set()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.interval_s):
                sample = self.sample()
                if self._until is not None and self._until(sample):
                    return
        except RuntimeError:
            pass  # a device that fails ends the recording
        finally:
            self._ended.set()

    # ---- results

    @property
    def samples(self) -> list[Sample]:
        """The samples so far, oldest first; older ones are thinned.

        Each has the peaks since the one before it, as the kernel and torch count them.
        """
        with self._lock:
            return list(self._samples)

    @property
    def nodes(self) -> list[Span]:
        """The runs of nodes, in the order they began."""
        with self._lock:
            return list(self._spans)

    def peaks(self, prompt: str | None = None) -> dict[str, Peak]:
        """The peaks of a prompt (default: the last), by node id."""
        with self._lock:
            return self._peaks.of(prompt)

    def sample(self) -> Sample:
        """Take one sample now."""
        running = following.running()
        taken, marks = _take_with_marks(running)
        with self._lock:
            before, self._last = self._last, taken
            same = before is not None and (before.prompt, before.node) == (taken.prompt, taken.node)
            if not same:
                self._follow(running, taken, before)
            raised = self._highest.apply(taken, marks)
            if taken.node is not None:  # a peak between two samples is of a node that ran at both
                spent_s = taken.at_s - before.at_s if same and before else 0.0
                self._peaks.add(raised if same else taken, spent_s)
            if raised != taken and not same:
                raised = dataclasses.replace(raised, node=None)  # unknown whose peak it was
            self._samples.append(raised)
            if len(self._samples) >= self._most:
                self._samples = thin(self._samples)
        return taken

    def _follow(self, running: following.Running, taken: Sample, before: Sample | None) -> None:
        if self._spans and self._spans[-1].ended_s is None:
            self._spans[-1] = dataclasses.replace(self._spans[-1], ended_s=taken.at_s)
        if taken.node is not None:
            self._peaks.begin(taken, before)
            self._spans.append(Span(taken.node, running.kind, taken.prompt, taken.at_s))


def thin(samples: Sequence[Sample]) -> list[Sample]:
    """Halve the older half: of each four keep the highest in RAM and the highest on devices."""
    return series.thin(
        samples,
        lambda one: one.ram_bytes,
        lambda one: (one.device_bytes or 0, one.pinned_bytes),
    )
