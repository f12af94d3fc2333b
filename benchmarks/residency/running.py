"""Run one cell: weights, ballast, apply, steps, undo; whatever goes wrong becomes a word.

Promise: a cell that fails leaves the device as it was for the next one, as far as the system lets
go of what it took; the resident run is what outputs are compared with, bit for bit.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import nn

from holdfast.base.units import format_bytes
from residency.cells import RESIDENT, SYSTEMS, Cell
from residency.measure import (
    Link,
    Peaks,
    ballast,
    context_bytes,
    once_ms,
    step_times_ms,
    tidy,
)
from residency.shapes import Inputs, Shape
from residency.system import Room, System
from residency.weights import HostRoom, on_device, weight_bytes

# A step that takes longer is measured once; others for about so long, or for all their steps.
SLOW_STEP_MS = 4000.0
TIMED_MS = 10_000.0
# A ballast leaves at least this: with less, torch itself cannot work. Who then takes more than the
# budget is marked so.
LEAST_BYTES = 1 << 30
# Where things lie on the machine is nobody's business.
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
LOG = logging.getLogger("bench_residency")


@dataclass
class Outcome:
    """What one run of a cell gave. Times of steps are in milliseconds; unknown is None."""

    cell: Cell
    budget_bytes: int | None = None
    keep_bytes: int | None = None
    apply_s: float | None = None
    move_s: float | None = None
    undo_s: float | None = None
    warm_steps_ms: list[float] = field(default_factory=list)
    step_times_ms: list[float] = field(default_factory=list)
    torch_peak_bytes: int | None = None
    driver_peak_bytes: int | None = None
    same_output: bool | None = None
    largest_difference: float | None = None
    link_gb_s: float | None = None
    whole_s: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    remark: str = ""
    error: str | None = None

    @property
    def step_ms(self) -> float | None:
        """The median step."""
        return statistics.median(self.step_times_ms) if self.step_times_ms else None


@dataclass(frozen=True)
class Reference:
    """The resident run of a model."""

    output: torch.Tensor
    weights_bytes: int
    activation_bytes: int
    context_bytes: int
    step_ms: float

    @property
    def beside_bytes(self) -> int:
        """What a step takes beside the weights."""
        return self.activation_bytes + self.context_bytes


class TooLong(Exception):
    """A cell ran past its limit."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong in this thread after `seconds`, as soon as Python code runs."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooLong(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Runner:
    """Runs cells on one device, one after another."""

    def __init__(
        self,
        device: torch.device,
        shapes: dict[str, Shape],
        steps: int,
        cell_limit_s: float,
        smallest_budget: float | None,
        link: Link,
    ) -> None:
        self.device = device
        self.references: dict[str, Reference] = {}
        self._shapes = shapes
        self._steps = steps
        self._cell_limit_s = cell_limit_s
        self._smallest = smallest_budget
        self._link = link
        self._ram = HostRoom()
        self._held: tuple[Outcome, System] | None = None
        self._context_bytes = 0  # before the ballast, which the driver would count as well

    def run(self, cell: Cell) -> Outcome:
        """Run `cell`; a failure is told in `error`."""
        started = time.perf_counter()
        outcome = Outcome(cell)
        spoken = io.StringIO()
        try:
            with limited(self._cell_limit_s), contextlib.redirect_stdout(spoken):
                self._measure(cell, outcome)
        except TooLong as exc:
            outcome.error = str(exc)
        except Exception as exc:  # whatever a peer raises is its result
            outcome.error = told(exc)
            LOG.debug("%s: %s", cell, spoken.getvalue(), exc_info=True)
        tidy(self.device)
        outcome.whole_s = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Undo what is still applied."""
        if self._held is None:
            return
        outcome, system = self._held
        self._held = None
        try:
            outcome.undo_s = once_ms(system.undo, self.device)[0] / 1000
        except Exception as exc:  # likewise
            outcome.error = outcome.error or told(exc)
            LOG.debug("%s, undone", outcome.cell, exc_info=True)
        del system
        tidy(self.device)

    def _measure(self, cell: Cell, outcome: Outcome) -> None:
        if cell.system != RESIDENT and cell.model not in self.references:
            raise LookupError("the resident run failed: there is nothing to compare with")
        shape = self._shapes[cell.model]
        moved = self._movable(cell)
        if moved is None:
            self.close()
        else:
            moved.vacate()
            tidy(self.device)
        outcome.link_gb_s = self._link.measure_gb_s()
        system = moved or SYSTEMS[cell.system].make(shape)
        inputs = shape.step_inputs(self.device)
        module = self._module(shape, system) if moved is None else None
        room = self._room(cell)
        outcome.budget_bytes, outcome.keep_bytes = room.budget_bytes, room.keep_bytes
        if room.budget_bytes is not None and room.budget_bytes < (room.beside_bytes or 0):
            raise LookupError(f"a step takes {format_bytes(room.beside_bytes)} beside the weights")
        self._context_bytes = context_bytes(self.device)
        with ballast(self.device, self._leave_bytes(cell, room)):
            try:
                self._steps_of(system, module, room, inputs, outcome)
            except BaseException:
                self._held = None
                with contextlib.suppress(Exception):  # the first failure is the one to tell
                    system.undo()
                raise
            del module
            self._held = (outcome, system)
            if system.movable:
                system.vacate()
            else:
                self.close()

    def _movable(self, cell: Cell) -> System | None:
        """The system that is applied, if it is the one that `cell` needs."""
        if self._held is None:
            return None
        outcome, system = self._held
        same = (outcome.cell.model, outcome.cell.system) == (cell.model, cell.system)
        return system if same and system.movable else None

    def _module(self, shape: Shape, system: System) -> nn.Module:
        if system.in_ram:
            return self._ram.fill(shape, self.device)
        return on_device(shape, self.device)

    def _room(self, cell: Cell) -> Room:
        reference = self.references.get(cell.model)
        if reference is None:
            return Room(self.device)
        whole = reference.weights_bytes
        return Room(
            self.device,
            budget_bytes=None if cell.budget is None else int(cell.budget * whole),
            keep_bytes=None if cell.keep is None else int(cell.keep * whole),
            beside_bytes=reference.beside_bytes,
        )

    def _leave_bytes(self, cell: Cell, room: Room) -> int | None:
        """What the ballast leaves: the budget; the smallest one to those that know none."""
        reference = self.references.get(cell.model)
        if room.budget_bytes is not None and reference is not None:
            return max(room.budget_bytes - reference.context_bytes, LEAST_BYTES)
        entry = SYSTEMS[cell.system]
        whole = cell.system in (RESIDENT, "compiled")
        if entry.budgeted or whole or reference is None or self._smallest is None:
            return None
        # What streams a block at a time cannot do with less than two of them.
        return max(int(self._smallest * reference.weights_bytes), 2 * LEAST_BYTES)

    def _steps_of(
        self,
        system: System,
        module: nn.Module | None,
        room: Room,
        inputs: Inputs,
        outcome: Outcome,
    ) -> None:
        """Apply `system` to `module`, or move it where it is applied already, and run steps."""
        peaks = Peaks(self.device)
        with peaks.watching():
            if module is None:
                took_ms, _ = once_ms(lambda: system.move(room), self.device)
                outcome.move_s = took_ms / 1000
            else:
                took_ms, _ = once_ms(lambda: system.apply(module, room), self.device)
                outcome.apply_s = took_ms / 1000
            outcome.remark = system.remark
            results = []
            for _ in range(system.warm_steps):
                took_ms, result = once_ms(lambda: system.step(inputs), self.device)
                outcome.warm_steps_ms.append(took_ms)
                results.append(result)
        if took_ms > SLOW_STEP_MS:
            outcome.step_times_ms = [took_ms]
        else:
            count = max(1, min(self._steps, int(TIMED_MS / took_ms)))
            outcome.step_times_ms, last = step_times_ms(
                lambda: system.step(inputs), count, self.device
            )
            with peaks.watching():
                results += [last, once_ms(lambda: system.step(inputs), self.device)[1]]
        outcome.figures = system.figures()
        weights = self._weights_bytes(outcome.cell.model)
        there = 0 if system.in_ram else weights  # on the device before the peaks were watched
        if peaks.torch_bytes is not None:
            outcome.torch_peak_bytes = peaks.torch_bytes + there
        if peaks.driver_bytes is not None:
            outcome.driver_peak_bytes = peaks.driver_bytes + there + self._context_bytes
        self._compare(outcome, [result.cpu() for result in results], weights)

    def _weights_bytes(self, model: str) -> int:
        reference = self.references.get(model)
        if reference is not None:
            return reference.weights_bytes
        return weight_bytes(self._shapes[model].module())

    def _compare(self, outcome: Outcome, results: list[torch.Tensor], weights: int) -> None:
        """Compare with the resident output; of the resident run itself, make the reference."""
        cell = outcome.cell
        if cell.system == RESIDENT and outcome.step_ms is not None:
            if not bool(torch.isfinite(results[0]).all()):
                raise ValueError("the resident output is not finite: nothing can be compared")
            activations = max(0, (outcome.torch_peak_bytes or 0) - weights)
            self.references[cell.model] = Reference(
                results[0], weights, activations, context_bytes(self.device), outcome.step_ms
            )
        expected = self.references[cell.model].output
        outcome.same_output = all(same_bits(result, expected) for result in results)
        gaps = [(result.double() - expected.double()).abs().max() for result in results]
        outcome.largest_difference = float(max(gaps))


def told(exc: Exception) -> str:
    """An exception in words."""
    return FOLDERS.sub("", f"{type(exc).__name__}: {exc}").strip()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
