"""Memory over time, and what each node of a prompt took of it.

Covers: one reading of RAM, devices and pinned memory; the thread that reads again and again; spans
and peaks of nodes.
Leaves to others: pictures and words (memory), which node runs (host.following).
Promise: reading starts nothing: no CUDA context is made and ComfyUI is only looked at. A sampler
keeps a bounded number of samples and no peak is thinned away; its thread ends with `stop()` and is
no reason for the process to stay. One sample took 120 µs on a slow core without a GPU, which is
0.25 % of that core at the usual pace.
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

from holdfast.base import thinning
from holdfast.memory.samples import rss_bytes
from holdfast.nodes.host import following, models
from holdfast.nodes.refusing import free_bytes

THREAD = "holdfast nodes"
INTERVAL_S = 0.05
MOST = 4096  # samples that are kept; past it the older half gets thinner
MOST_SPANS = 2000
MOST_PROMPTS = 8  # whose peaks are kept
RAM = "ram"  # among marks
_PINNED = "holdfast.residency.models.pinned"
Marks = dict[str, int]  # the most there ever was, by place


class Device(NamedTuple):
    """Memory of one device that torch has used."""

    name: str
    allocated_bytes: int  # in tensors
    reserved_bytes: int  # taken by torch, tensors and cache
    used_bytes: int  # by anybody, other processes too
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one time, in seconds of `time.monotonic()`."""

    at_s: float
    ram_bytes: int  # of this process
    ram_free_bytes: int  # that this process may still take
    devices: tuple[Device, ...]  # empty where torch has used none
    pinned_bytes: int
    node: str | None = None
    prompt: str | None = None

    @property
    def device_bytes(self) -> int | None:
        """In tensors on all devices; None where there is no device."""
        return sum(one.allocated_bytes for one in self.devices) if self.devices else None


@dataclass(frozen=True, slots=True)
class Span:
    """One stay of ComfyUI in a node. It is still there where `ended_s` is None."""

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
    device_bytes: int | None  # in tensors; None where there is no device
    above_bytes: int  # over the level when the node began: of the devices, or of RAM without one
    seconds: float


def take() -> Sample:
    """Memory now, and the node that runs."""
    return _taken(following.running())[0]


def _taken(running: following.Running) -> tuple[Sample, Marks]:
    """A sample, and the most there ever was in RAM and, by torch's count, on each device."""
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
    """Host memory that ComfyUI and Holdfast have locked for copies to a device."""
    ours = getattr(sys.modules.get(_PINNED), "total_pinned_bytes", None)
    return models.pinned_bytes() + (ours() if ours is not None else 0)


def _devices() -> tuple[tuple[Device, ...], Marks]:
    """The devices torch has used and its high-water marks. Asks no device that it has not."""
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
            continue  # asking for its memory would make a context on it
        free, total = cuda.mem_get_info(number)
        name, allocated = f"cuda:{number}", counted["allocated_bytes"]["all"]
        marks[name] = allocated["peak"]
        found.append(Device(name, allocated["current"], reserved["current"], total - free, total))
    return tuple(found), marks


def highest_ram_bytes() -> int:
    """The most RAM this process ever had, by the kernel's count; 0 where it does not count."""
    if sys.platform != "linux":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _Highest:
    """High-water marks that others keep: what they say about the time since the last look."""

    def __init__(self) -> None:
        self._known: Marks = {}

    def raised(self, sample: Sample, marks: Marks) -> Sample:
        """The sample with the most since the last look: a mark that rose, or what there is now."""
        before, self._known = self._known, marks

        def most(place: str, now: int) -> int:
            rose = place in before and marks.get(place, 0) > before[place]
            return max(marks[place], now) if rose else now

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
        """A node begins: its level is the lower of the two samples around its beginning."""
        same = before is not None and before.prompt == sample.prompt
        level = min(_level(sample), _level(before)) if same and before else _level(sample)
        self._base.setdefault((sample.prompt, str(sample.node)), level)
        self._prompts.setdefault(sample.prompt, {})
        while len(self._prompts) > MOST_PROMPTS:
            old = next(iter(self._prompts))
            del self._prompts[old]
            self._base = {one: base for one, base in self._base.items() if one[0] != old}

    def add(self, sample: Sample, spent_s: float) -> None:
        """So much there was, at the most, while the node of `sample` ran for `spent_s` more."""
        ram_bytes, device_bytes = sample.ram_bytes, sample.device_bytes
        node = str(sample.node)
        peaks = self._prompts.setdefault(sample.prompt, {})
        old = peaks.get(node) or Peak(node, 0, None, 0, 0.0)
        level = _level(sample)
        above = level - self._base.get((sample.prompt, node), level)
        if device_bytes is not None:
            device_bytes = max(device_bytes, old.device_bytes or 0)
        peaks[node] = Peak(
            node=node,
            ram_bytes=max(old.ram_bytes, ram_bytes),
            device_bytes=old.device_bytes if device_bytes is None else device_bytes,
            above_bytes=max(old.above_bytes, above),
            seconds=old.seconds + spent_s,
        )

    def of(self, prompt: str | None) -> dict[str, Peak]:
        """The peaks of a prompt, or of the last that ran."""
        if prompt is None and self._prompts:
            prompt = next(reversed(self._prompts))
        return dict(self._prompts.get(prompt, {}))


def _level(sample: Sample) -> int:
    return sample.ram_bytes if sample.device_bytes is None else sample.device_bytes


class Sampler:
    """Reads memory about every `interval_s` seconds from `start` to `stop`. Safe for threads.

        with Sampler() as sampler:
            work()
        print(max(sample.ram_bytes for sample in sampler.samples))

    `until` is asked at that pace too, with the newest sample: where it says True the sampler ends
    by itself. A sampler runs once.
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
        """Begin, with a first sample. Does nothing the second time."""
        if self._thread is None and not self._ended.is_set():
            self.sample()
            self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End, with a last sample. Does nothing the second time."""
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
        """Whether it reads."""
        return self._thread is not None and not self._ended.is_set()

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.interval_s):
                sample = self.sample()
                if self._until is not None and self._until(sample):
                    return
        except RuntimeError:
            pass  # a device that does not answer any more ends the recording
        finally:
            self._ended.set()  # whatever it was: the next look begins anew

    # ---- what was read

    @property
    def samples(self) -> list[Sample]:
        """What was read so far, oldest first; the older, the fewer for a second.

        Each has the most since the one before it, as the kernel and torch have counted it.
        """
        with self._lock:
            return list(self._samples)

    @property
    def nodes(self) -> list[Span]:
        """The nodes that ran, in the order of their beginnings."""
        with self._lock:
            return list(self._spans)

    def peaks(self, prompt: str | None = None) -> dict[str, Peak]:
        """The peaks of the nodes of a prompt, or of the last that ran, by node id."""
        with self._lock:
            return self._peaks.of(prompt)

    def sample(self) -> Sample:
        """Read once, now."""
        running = following.running()
        taken, marks = _taken(running)
        with self._lock:
            before = self._last
            self._follow(running, taken, before)
            raised = self._highest.raised(taken, marks)
            self._note(taken, raised, before)
            self._last = taken
            if raised != taken and (before is None or _place(before) != _place(taken)):
                raised = dataclasses.replace(raised, node=None)  # nobody knows whose it was
            self._samples.append(raised)
            if len(self._samples) >= self._most:
                self._samples = thinned(self._samples)
        return taken

    def _follow(self, running: following.Running, taken: Sample, before: Sample | None) -> None:
        if before is not None and _place(before) == _place(taken):
            return
        if self._spans and self._spans[-1].ended_s is None:
            last = self._spans[-1]
            self._spans[-1] = Span(last.node, last.kind, last.prompt, last.began_s, taken.at_s)
        if taken.node is not None:
            self._peaks.begin(taken, before)
            self._spans.append(Span(taken.node, running.kind, taken.prompt, taken.at_s))

    def _note(self, taken: Sample, raised: Sample, before: Sample | None) -> None:
        """Peaks between two looks belong to a node where it ran at both."""
        if taken.node is not None and before is not None and _place(before) == _place(taken):
            self._peaks.add(raised, taken.at_s - before.at_s)
        elif taken.node is not None:
            self._peaks.add(taken, 0.0)


def _place(sample: Sample) -> tuple[str | None, str | None]:
    return sample.prompt, sample.node


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """The older half with at most half as many: of each four the highest in RAM and on devices."""
    return thinning.thinned(
        samples,
        lambda one: one.ram_bytes,
        lambda one: (one.device_bytes or 0, one.pinned_bytes),
    )
