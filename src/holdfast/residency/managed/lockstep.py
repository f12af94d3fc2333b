"""Runs several calls of one streamed module in step, so that its weights cross the link once.

Guidance calls a model with the prompt and without. One after the other, each call streams all
weights; in step, every group of layers serves both while it is on the device. Results are the same
bits. One call computes at a time; an exception in one ends them all, then is raised.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.managed.module_hooks import managed_of
from holdfast.residency.plan import Plan

Calls = Sequence[tuple[Sequence[Any], Mapping[str, Any]]]


def together(module: nn.Module, calls: Calls) -> list[Any]:
    """The results of `module(*args, **kwargs)` for each of the calls.

    Weights of a managed module that are streamed cross the link once for all calls. The first calls
    of a module, which find out its order, and those of a module that is not managed run one after
    the other.
    """
    managed = managed_of(module)
    if managed is None or len(calls) < 2 or not managed.can_run_together("forward"):
        return [module(*args, **kwargs) for args, kwargs in calls]
    return managed.run_together("forward", calls)


class Turns:
    """Lets one of several calls run at a time, until its next border."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._turn = 0
        self._reached = [0] * count  # the border each call stands before
        self._over = [False] * count
        self.failed: BaseException | None = None

    def first(self, number: int) -> None:
        """Wait for the first turn."""
        with self._changed:
            self._await(number)

    def border(self, number: int, border: int) -> None:
        """Wait at a border until the other calls have reached it."""
        with self._changed:
            self._reached[number] = border
            states = zip(self._over, self._reached, strict=True)
            if any(not over and reached < border for over, reached in states):
                self._pass_on(number)
                self._await(number)

    def over(self, number: int, failed: BaseException | None = None) -> None:
        """Record that a call has ended."""
        with self._changed:
            self._over[number] = True
            self.failed = self.failed or failed
            self._pass_on(number)

    def fail(self, reason: BaseException) -> None:
        """End all calls at their next border."""
        with self._changed:
            self.failed = self.failed or reason
            self._changed.notify_all()

    def is_last(self, number: int) -> bool:
        """Whether all other calls have passed this point."""
        mine = self._reached[number]
        return all(
            over or i == number or self._reached[i] > mine for i, over in enumerate(self._over)
        )

    def _await(self, number: int) -> None:
        while self._turn != number:
            if self.failed is not None:
                raise Abandoned
            self._changed.wait()
        if self.failed is not None:
            raise Abandoned

    def _pass_on(self, number: int) -> None:
        waiting = [(self._reached[i], i) for i, over in enumerate(self._over) if not over]
        self._turn = min(waiting)[1] if waiting else -1
        self._changed.notify_all()


class Abandoned(BaseException):
    """Another call failed; this one ends quietly."""


def borders(plan: Plan, count: int) -> list[int]:
    """For each use, the number of the border it lies behind.

    Between two borders lies at most half of what the ring holds, so that the other half can be
    filled while all calls compute; nothing there needs the place of something else there.
    """
    starts: set[int] = set()
    begin = ring = 0
    for number, visit in enumerate(plan.visits):
        chunk = plan.chunks[visit.chunk]
        ring += 0 if visit.slot is None else chunk.payload_bytes
        before = [s.after for s in (visit.slot, visit.decoded) if s is not None]
        clash = any(begin <= earlier < number for after in before for earlier in after)
        if number > begin and (clash or ring > plan.ring_bytes / 2):
            starts.add(visit.first)
            begin = number
            ring = 0 if visit.slot is None else chunk.payload_bytes
    found: list[int] = []
    border = 0
    for use in range(count):
        border += use in starts
        found.append(border)
    return found


def run_in_step(
    carrier: Carrier, work: Sequence[Callable[[], Any]], turns: Turns, switch: Callable[[int], None]
) -> list[Any]:
    """Run each piece of work in a thread, one at a time, the first in this one; the results."""
    results: list[Any] = [None] * len(work)
    # The others take over torch's settings of this thread; a lane can be entered once.
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    lanes = [carrier.current_lane() or contextlib.nullcontext() for _ in work]

    def run(number: int) -> None:
        failed: BaseException | None = None
        try:
            turns.first(number)
            switch(number)
            with (
                torch.inference_mode(inference),
                torch.set_grad_enabled(gradients),
                lanes[number],
                carrier.computing(),
            ):
                results[number] = work[number]()
        except Abandoned:
            pass
        except BaseException as exc:  # noqa: BLE001  raised below
            failed = exc
        finally:
            turns.over(number, failed)

    others: list[threading.Event] = []
    try:
        others += [_WORKERS.start(run, number) for number in range(1, len(work))]
        turns.first(0)
        switch(0)
        results[0] = work[0]()
        turns.over(0)
    except Abandoned:
        turns.over(0)
    except BaseException as exc:  # noqa: BLE001  raised below
        turns.fail(exc)
        turns.over(0, exc)
    _wait_for(others, turns)
    if turns.failed is not None:
        raise turns.failed
    return results


def _wait_for(others: Sequence[threading.Event], turns: Turns) -> None:
    """Wait until all have ended; Ctrl-C ends them at their next border."""
    while not all(event.is_set() for event in others):
        try:
            for event in others:
                event.wait()
        except BaseException as exc:  # noqa: BLE001  raised by the caller
            turns.fail(exc)


class _Workers:
    """Idle threads that wait for work and end when none comes."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._work: queue.SimpleQueue[tuple[Callable[[int], None], int, threading.Event]]
        self._work = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def start(self, run: Callable[[int], None], number: int) -> threading.Event:
        """Run `run(number)` in one of them; the event is set when it has ended."""
        over = threading.Event()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name="holdfast-in-step", daemon=True).start()
            self._work.put((run, number, over))
        return over

    def _serve(self) -> None:
        patience_s = 60.0  # its first work is certain to come
        while True:
            try:
                run, number, over = self._work.get(timeout=patience_s)
            except queue.Empty:
                with self._lock:
                    if self._work.empty():
                        self._idle -= 1
                        return
                continue
            try:
                run(number)
            finally:
                del run
                with self._lock:
                    self._idle += 1
                over.set()
            patience_s = self._patience_s


_WORKERS = _Workers(patience_s=2.0)
