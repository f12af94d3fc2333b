"""The work that pipelines of this process do just now, for those who look.

Covers: the load or run under way, its stage, how long that will take; stopping it; the networks of
pipelines that are loaded.
Leaves to others: what a run cost (result), runs that are over (history).
Promise: telling costs some microseconds and never fails. A request to stop ends the work it was
made for, or nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.pipeline.progress import Event, Listener, Stage
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
)

_numbers = itertools.count(1)
_least_done = 0.02  # of a stage, before anybody says how long it takes


@dataclass(frozen=True, slots=True)
class Now:
    """One moment of a run. Times are in seconds; `left_s` is that of the stage."""

    id: str
    model: str
    prompt: str
    stage: Stage
    done: int
    total: int | None
    label: str | None
    began_s: float
    stage_s: float
    left_s: float | None


class Working:
    """A load or a run that is under way."""

    def __init__(self, model: str, prompt: str = "") -> None:
        self.began_s = time.time()
        self.id = f"{int(self.began_s * 1000):012x}-{os.getpid():x}-{next(_numbers):x}"
        self.model, self.prompt = model, prompt
        self._event = Event("load", 0)
        self._stage_began = self._told = time.perf_counter()
        self._part = 0.0  # of the stage that is over, from 0 to 1
        self._stopping = self._asked = False

    def tell(self, event: Event) -> None:
        """Where it is. Raises InterruptProcessingException where somebody asked it to stop."""
        now = time.perf_counter()
        if event.stage != self._event.stage:
            self._stage_began = now
        self._told, self._part = now, _part_of(event)
        self._event = event
        if self._stopping:
            self._take_back()
            raise InterruptProcessingException("processing was interrupted")

    def heard(self, progress: Listener) -> Listener:
        """A listener that tells here what it tells `progress`."""

        def listen(event: Event) -> None:
            self.tell(event)
            progress(event)

        return listen

    def now(self) -> Now:
        """This moment."""
        event, at = self._event, time.perf_counter()
        return Now(
            id=self.id,
            model=self.model,
            prompt=self.prompt,
            stage=event.stage,
            done=event.done,
            total=event.total,
            label=event.label,
            began_s=self.began_s,
            stage_s=at - self._stage_began,
            left_s=self._left_s(at),
        )

    def _left_s(self, at: float) -> float | None:
        if self._part < _least_done:
            return None
        whole_s = (self._told - self._stage_began) / self._part
        return max(0.0, whole_s - (at - self._stage_began))

    def stop(self, alone: bool = True) -> None:
        """Have it end at its next look: where it is `alone`, inside of a step.

        Others that are under way look at the same flag, and would end in its place.
        """
        self._stopping = True
        if alone:
            self._asked = True
            interrupt_current_processing(True)

    def over(self) -> None:
        """A request that came too late is for nobody."""
        self._take_back()

    def _take_back(self) -> None:
        if self._asked:
            self._asked = False
            interrupt_current_processing(False)


def _part_of(event: Event) -> float:
    """The part of its stage that is over."""
    if event.done_bytes is not None and event.total_bytes:
        return event.done_bytes / event.total_bytes
    return event.done / event.total if event.total else 0.0


class _State:
    """Of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.working: list[Working] = []  # the newest last
        self.networks: list[Network] = []


@contextlib.contextmanager
def under_way(working: Working) -> Iterator[None]:
    """In the block, this is what the process does."""
    with _state.lock:
        _state.working.append(working)
    try:
        yield
    finally:
        with _state.lock:
            if working in _state.working:  # not so in the child of a fork
                _state.working.remove(working)
            working.over()


def current() -> Now | None:
    """The work under way; of several, what began last."""
    with _state.lock:
        return _state.working[-1].now() if _state.working else None


def stop_current() -> bool:
    """Ask the work under way to stop; False where there is none."""
    with _state.lock:
        if not _state.working:
            return False
        _state.working[-1].stop(alone=len(_state.working) == 1)
        return True


# ---- networks


class Network:
    """A network of a pipeline that is loaded. Holds nothing."""

    def __init__(self, model: str, name: str, device: str, part: Any, managed: Any) -> None:
        self.model, self.name, self.device = model, name, device
        self.nbytes = _nbytes(part)
        self._part = weakref.ref(part)
        self._managed = None if managed is None else weakref.ref(managed)

    @property
    def managed(self) -> Any:
        """Who manages it, where it is under a budget."""
        return None if self._managed is None else self._managed()

    @property
    def is_there(self) -> bool:
        """Whether somebody still has it."""
        return self._part() is not None


def loaded(model: str, name: str, device: str, part: Any, managed: Any = None) -> None:
    """Note a network that was brought to where it runs."""
    with contextlib.suppress(TypeError):  # what cannot be referred to weakly is not noted
        network = Network(model, name, device, part, managed)
        with _state.lock:
            _state.networks = [one for one in _state.networks if one.is_there]
            _state.networks.append(network)


def networks() -> list[Network]:
    """The networks of pipelines that are there."""
    return [one for one in list(_state.networks) if one.is_there]


def _nbytes(part: Any) -> int:
    """Bytes of its weights; 0 where it does not tell."""
    ask = getattr(part, "parameters", None)
    if not callable(ask):
        return int(getattr(part, "nbytes", 0) or 0)
    tensors: Any = (*part.parameters(), *part.buffers())
    return sum({id(one): one.numel() * one.element_size() for one in tensors}.values())


_state = _State()


def _after_fork() -> None:
    """What the parent does is not done here."""
    _state.__init__()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
