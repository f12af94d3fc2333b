"""`Recorder`: samples memory while a prompt that contains a given node waits or runs.

A recording ends by itself, at the latest `GRACE_S` after a prompt was sent that never began. It
leaves no thread behind, and contains nothing of other prompts.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.nodes.host import following
from holdfast.nodes.memory.sampling import Peak, Sample, Sampler, Span

GRACE_S = 10.0  # from sending a prompt until it is queued: ComfyUI validates it first
LONGEST = 40  # characters of a node's id in texts
PACE_S = 0.5  # between two checks of the queue


@dataclass(frozen=True, slots=True)
class RunRecording:
    """Memory over one run. Times are of `time.monotonic()`."""

    samples: tuple[Sample, ...]  # at least one
    spans: tuple[Span, ...] = ()
    peaks: Mapping[str, Peak] = field(default_factory=dict)  # by node
    names: Mapping[str, str] = field(default_factory=dict)  # titles of nodes

    @property
    def began_s(self) -> float:
        """The time of the first sample."""
        return self.samples[0].at_s

    @property
    def seconds(self) -> float:
        """From the first to the last sample."""
        return self.samples[-1].at_s - self.samples[0].at_s

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that were used."""
        return tuple(dict.fromkeys(d.name for one in self.samples for d in one.devices))

    @property
    def peak_ram(self) -> Sample:
        """The sample with the most RAM of this process."""
        return max(self.samples, key=lambda one: one.ram_bytes)

    def peak_of(self, device: str) -> tuple[Sample, int]:
        """The sample with the most bytes in tensors on a device, and those bytes."""
        return max(
            ((one, _count_allocated(one, device)) for one in self.samples),
            key=lambda found: found[1],
        )

    def name(self, node: str) -> str:
        """A node's title and number, as the person knows it."""
        title = self.names.get(node)
        return self.kind(node) if title is None else f"{title} #{node[:LONGEST]}"

    def kind(self, node: str) -> str:
        """A node's class and number."""
        kind = next((s.kind for s in self.spans if s.node == node and s.kind), "node")
        return f"{kind} #{node[:LONGEST]}"


def _count_allocated(sample: Sample, device: str) -> int:
    return next((one.allocated_bytes for one in sample.devices if one.name == device), 0)


def extract_run(
    sampler: Sampler, prompt: str | None, names: Mapping[str, str], but: str | None = None
) -> RunRecording | None:
    """The samples of one prompt, or all if `prompt` is None; None if there are none.

    `but` is the node that shows them, which is left out.
    """
    every = [one for one in sampler.samples if prompt is None or one.prompt == prompt]
    if not every:
        return None
    asks = next((at for at, one in enumerate(every) if but and one.node == but), len(every))
    samples = every[:asks]
    if asks < len(every):  # the sample at its beginning ends the run before it
        before = samples[-1].node if samples else None
        samples.append(dataclasses.replace(every[asks], node=before))
    now_s = samples[-1].at_s
    spans = [
        Span(one.node, one.kind, one.prompt, one.began_s, min(one.ended_s or now_s, now_s))
        for one in sampler.nodes
        if one.node != but and one.began_s < now_s and (prompt is None or one.prompt == prompt)
    ]
    peaks = {node: peak for node, peak in sampler.peaks(prompt).items() if node != but}
    return RunRecording(tuple(samples), tuple(spans), peaks, dict(names))


class Recorder:
    """Records prompts that have a node of class `kind`."""

    def __init__(self, kind: str, grace_s: float = GRACE_S) -> None:
        self.kind = kind
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._sampler: Sampler | None = None
        self._until_s = 0.0
        self._next_s = 0.0
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(self, server: Any = None) -> bool:
        """Watch the prompts sent to ComfyUI from now on; False without ComfyUI.

        A second call for the same server does nothing.
        """
        server = server if server is not None else following.server()
        if server is None:
            return False
        if server not in self._watched:
            self._watched.add(server)
            following.watch(self.on_prompt, server)
        return True

    def on_prompt(self, data: Mapping[str, Any]) -> None:
        """Begin to record if a prompt has our node. ComfyUI may still reject it or let it wait."""
        prompt = data.get("prompt") if isinstance(data, Mapping) else None
        if isinstance(prompt, Mapping) and any(map(self._is_ours, prompt.values())):
            self.begin()

    def _is_ours(self, node: Any) -> bool:
        return isinstance(node, Mapping) and node.get("class_type") == self.kind

    def begin(self) -> None:
        """Record from now on, until no prompt needs it."""
        with self._lock:
            self._until_s = time.monotonic() + self._grace_s
            if self._sampler is None or not self._sampler.running:
                self._sampler = Sampler(until=self._is_over).start()

    def _is_over(self, newest: Sample) -> bool:
        """Whether no prompt needs it any more; called in the sampler's thread."""
        if newest.at_s < self._next_s:
            return False
        self._next_s = newest.at_s + PACE_S
        wanted = following.is_queued(self.kind)
        with self._lock:
            if wanted:
                self._until_s = max(self._until_s, newest.at_s)
                return False
            return newest.at_s > self._until_s

    @property
    def running(self) -> bool:
        """Whether it records."""
        sampler = self._sampler
        return sampler is not None and sampler.running

    def current_run(self, but: str | None = None) -> RunRecording | None:
        """The recording of the running prompt up to now; None if it was not recorded.

        `but` is the node that shows it, which is left out.
        """
        prompt, sampler = following.running_prompt(), self._sampler
        if prompt is None or sampler is None:
            return None
        sampler.sample()
        return extract_run(sampler, prompt, following.names(), but)
