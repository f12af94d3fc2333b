"""Loads and runs in progress in this process, and the networks of loaded pipelines.

The dashboard reads this. Reporting costs microseconds and never fails. A request to stop ends the
run it was made for, or nothing.
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

from holdfast.base.threads import register_at_fork
from holdfast.pipeline.run.progress import Event, Listener, Stage
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
)

_counter = itertools.count(1)
_MIN_FRACTION = 0.02  # fraction of a stage before a remaining time is estimated


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run now. Times are in seconds; `left_s` is for the current stage."""

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


class LiveRun:
    """A load or a run in progress."""

    def __init__(self, model: str, prompt: str = "") -> None:
        self.began_s = time.time()
        self.id = f"{int(self.began_s * 1000):012x}-{os.getpid():x}-{next(_counter):x}"
        self.model, self.prompt = model, prompt
        self._event = Event("load", 0)
        self._stage_began = self._reported = time.perf_counter()
        self._fraction = 0.0  # of the stage that is done, from 0 to 1
        self._stopping = self._set_flag = False

    def report(self, event: Event) -> None:
        """Record progress. Raises InterruptProcessingException after a request to stop."""
        now = time.perf_counter()
        if event.stage != self._event.stage:
            self._stage_began = now
        if event.done_bytes is not None and event.total_bytes:
            self._fraction = event.done_bytes / event.total_bytes
        else:
            self._fraction = event.done / event.total if event.total else 0.0
        self._reported, self._event = now, event
        if self._stopping:
            self.withdraw_stop()
            raise InterruptProcessingException("processing was interrupted")

    def forward_to(self, progress: Listener) -> Listener:
        """A listener that records events here, then calls `progress`."""

        def listen(event: Event) -> None:
            self.report(event)
            progress(event)

        return listen

    def status(self) -> RunStatus:
        event, stage_s = self._event, time.perf_counter() - self._stage_began
        left_s = None
        if self._fraction >= _MIN_FRACTION:
            whole_s = (self._reported - self._stage_began) / self._fraction
            left_s = max(0.0, whole_s - stage_s)
        return RunStatus(
            id=self.id,
            model=self.model,
            prompt=self.prompt,
            stage=event.stage,
            done=event.done,
            total=event.total,
            label=event.label,
            began_s=self.began_s,
            stage_s=stage_s,
            left_s=left_s,
        )

    def stop(self, alone: bool = True) -> None:
        """Make it end at its next event, or inside of a step if it runs `alone`.

        The flag that is checked inside steps is global: another run could end in its place.
        """
        self._stopping = True
        if alone:
            self._set_flag = True
            interrupt_current_processing(True)

    def withdraw_stop(self) -> None:
        """Clear the global flag if this run set it; it must not stop the next one."""
        if self._set_flag:
            self._set_flag = False
            interrupt_current_processing(False)


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run: list[LiveRun] = []  # the newest last
        self.networks: list[Network] = []


@contextlib.contextmanager
def track(run: LiveRun) -> Iterator[None]:
    """List `run` as in progress for the duration of the block."""
    with _state.lock:
        _state.run.append(run)
    try:
        yield
    finally:
        with _state.lock:
            if run in _state.run:  # not in the child of a fork
                _state.run.remove(run)
            run.withdraw_stop()


def current() -> RunStatus | None:
    """The load or run in progress; of several, the newest."""
    with _state.lock:
        return _state.run[-1].status() if _state.run else None


def stop_current() -> bool:
    """Ask the newest load or run to stop; False if there is none."""
    with _state.lock:
        if not _state.run:
            return False
        _state.run[-1].stop(alone=len(_state.run) == 1)
        return True


class Network:
    """A network of a loaded pipeline. Holds only weak references."""

    def __init__(self, model: str, name: str, device: str, part: Any, managed: Any) -> None:
        self.model, self.name, self.device = model, name, device
        self.nbytes = _nbytes(part)
        self._part = weakref.ref(part)
        self._managed = None if managed is None else weakref.ref(managed)

    @property
    def managed(self) -> Any:
        """Its residency.Managed, if it is under a budget."""
        return None if self._managed is None else self._managed()

    @property
    def is_there(self) -> bool:
        """Whether the network still exists."""
        return self._part() is not None


def note_network(model: str, name: str, device: str, part: Any, managed: Any = None) -> None:
    """Remember a network that was placed on its device."""
    with contextlib.suppress(TypeError):  # no weak references to it: not listed
        network = Network(model, name, device, part, managed)
        with _state.lock:
            _state.networks = [one for one in _state.networks if one.is_there]
            _state.networks.append(network)


def networks() -> list[Network]:
    """Networks of loaded pipelines."""
    return [one for one in list(_state.networks) if one.is_there]


def _nbytes(part: Any) -> int:
    """Bytes of its weights; 0 if unknown."""
    if not callable(getattr(part, "parameters", None)):
        return int(getattr(part, "nbytes", 0) or 0)
    tensors: Any = (*part.parameters(), *part.buffers())
    return sum({id(one): one.numel() * one.element_size() for one in tensors}.values())


_state = _State()


register_at_fork(after_in_child=_state.__init__)  # the child of a fork runs none of this
