"""The ways to run a ComfyUI model on its device, their predicted times, and the best of them.

The ways are: all on the device, Stream Model, ComfyUI's lowvram; with the directions of guidance
batched or one by one, as ComfyUI decides it. Weights are neither moved nor read. A time is
predicted from timed layers, or None, or a lower bound (`least`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.base.errors import HoldfastError, OutOfMemory
from holdfast.nodes.host import fitting as host
from holdfast.nodes.residency.streaming import pays
from holdfast.residency import plan
from holdfast.residency.carriers import carrier_for
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.predict.case import FitRequest, make_case
from holdfast.residency.predict.packable import Packing
from holdfast.residency.predict.profile import Profile, profile
from holdfast.residency.predict.rates import (
    Times,
    device_name,
    get_facts,
    measure_times,
    pause_gc,
    time_layers,
)
from holdfast.residency.predict.shapes import ModuleCall

GIB = 1 << 30
# A pass on the CPU that would take longer is estimated, not measured.
_MEASURED_ON_CPU_MS = 3000.0
_AS_GOOD = 1.02  # a simpler choice may take this much longer


@dataclass(frozen=True, slots=True)
class Look:
    """One pass of a network. `problem` is None if it could not be traced, for the reason `why`."""

    directions: int  # of guidance, batched
    beside_bytes: int  # activations and inputs
    resident_ms: float | None
    before_ms: float
    problem: plan.Problem | None
    way: str  # "measured", "estimated", "simulated", or "bound"
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run the model. With `least`, `step_ms` is a lower bound."""

    name: str
    weights_bytes: int  # on the device
    peak_bytes: int
    step_ms: float | None
    least: bool
    stream: bool
    look: Look


@dataclass(frozen=True, slots=True)
class Answer:
    """The choices that fit, the simplest first, and the best; None if nothing fits.

    `look` is the pass of the best choice. `smallest_bytes` is the least memory that suffices.
    """

    device: str
    have_bytes: int
    steps: int
    guided: bool
    choices: tuple[Choice, ...]
    best: Choice | None
    look: Look
    smallest_bytes: int | None

    @property
    def seconds(self) -> float:
        """For all steps; NaN if not predicted."""
        if self.best is None or self.best.step_ms is None or self.best.least:
            return math.nan
        return self.best.step_ms * self.steps / 1000

    @property
    def stream(self) -> bool:
        """Whether Stream Model is the best setting."""
        return self.best is not None and self.best.stream

    @property
    def budget_gb(self) -> float:
        """The budget of Stream Model in GiB, 0 if that is not the best."""
        return self.best.weights_bytes / GIB if self.best is not None and self.stream else 0.0


def answer(
    question: host.Question,
    *,
    steps: int = 20,
    cfg: float = 8.0,
    budget_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Answer:
    """Find the choices and the best of them.

    `budget_bytes` is for the model and its computing; None is what ComfyUI would have. `progress`
    is called with (done, total). Raises NotFound for an unknown device, or what `progress` raises.
    """
    guided = not math.isclose(cfg, 1.0)
    carrier = carrier_for(question.device)
    looks: list[Look] = []
    wanted = (2, 1) if guided else (1,)
    with pause_gc():
        for number, directions in enumerate(wanted):
            if progress is not None:
                progress(number, len(wanted))
            looks.append(_look(question, directions, carrier))
        link_gb_s = get_facts(carrier).rates.link_gb_s
    if progress is not None:
        progress(len(wanted), len(wanted))
    room = question.room if budget_bytes is None else question.room.of(budget_bytes)
    finder = _Finder(question, room, carrier, tuple(looks), guided, link_gb_s)
    found = finder.list_fitting()
    best = _best(found)
    return Answer(
        device=_describe(carrier),
        have_bytes=room.have_bytes,
        steps=steps,
        guided=guided,
        choices=tuple(found),
        best=best,
        look=looks[-1] if best is None else best.look,
        smallest_bytes=finder.smallest_bytes() if best is None else None,
    )


def _best(found: list[Choice]) -> Choice | None:
    """The first that is about as fast as the fastest; the first if no time is known."""
    times = {i: c.step_ms for i, c in enumerate(found) if c.step_ms is not None and not c.least}
    if not times:
        return found[0] if found else None
    fastest = min(times.values())
    return found[next(i for i, ms in times.items() if ms <= fastest * _AS_GOOD)]


def _describe(carrier: Carrier) -> str:
    name = device_name(carrier)
    return carrier.name if name in (carrier.name, "") else f"{carrier.name} ({name})"


# ---- one pass


def _look(question: host.Question, directions: int, carrier: Carrier) -> Look:
    try:
        inputs = question.inputs(directions)
        # By stored dtype, on copies without data: the real weights may share memory.
        found = profile(
            question.network, ModuleCall("forward", inputs), lambda _, tensor: tensor.dtype
        )
    except HoldfastError as exc:
        needs = question.needs_bytes[directions - 1]
        return Look(directions, needs, None, 0.0, None, "bound", exc.what)
    times = _times(found, carrier)
    ask = FitRequest(carrier, None, None, None, False, None, None)
    facts = get_facts(carrier)
    packing = Packing.of(facts.schemes, next(question.network.parameters()).dtype)
    case = make_case(ask, found, times, facts, packing)
    problem = case.problem(packed=pays(carrier))  # as Stream Model does
    whole_ms = problem.compute_ms + case.before_ms
    return Look(directions, case.beside_bytes, whole_ms, case.before_ms, problem, times.way)


def _times(found: Profile, carrier: Carrier) -> Times:
    """Times of the layers, measured on the CPU too if that takes seconds."""
    times = time_layers(found, carrier)
    guess_ms = sum(times.layers_ms) + times.before_ms
    if times.way != "estimated" or carrier.device.type != "cpu" or guess_ms > _MEASURED_ON_CPU_MS:
        return times
    return dataclasses.replace(measure_times(found, carrier), activation_bytes=None)


# ---- choices


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the choices. `looks` are the passes with two directions and with one, or only that."""

    question: host.Question
    room: host.Room
    carrier: Carrier
    looks: tuple[Look, ...]
    guided: bool
    link_gb_s: float

    @property
    def _in_host_memory(self) -> bool:
        """Whether the host computes: then there is nothing to stream."""
        return self.carrier.name.partition(":")[0] == "cpu"

    def list_fitting(self) -> list[Choice]:
        """The choices that fit, the simplest first."""
        return [c for c in self._choices() if c.peak_bytes <= self.room.have_bytes]

    def _choices(self) -> Iterator[Choice]:
        weights = self.question.weight_bytes
        kept = self.room.kept_bytes(self.question.needs_bytes[0])
        if self._in_host_memory:
            yield self._whole()
            return
        if weights <= kept:
            yield self._whole()
            # Shows what it would cost to leave room for others.
            yield from self._best_stream("Stream Model, half of it", weights // 2)
            return
        yield from self._best_stream("Stream Model", weights)
        if kept > 0:
            yield self._lowvram(kept)

    def _passes(self, look: Look) -> int:
        """Calls of the network in a step."""
        return 2 // look.directions if self.guided else 1

    def _usual(self, weights_bytes: int) -> Look:
        """The pass that ComfyUI makes with `weights_bytes` on the device."""
        taken = 0 if self._in_host_memory else weights_bytes
        at_once = host.AT_ONCE * self.question.needs_bytes[1] < self.room.free_bytes - taken
        return self.looks[0 if at_once else -1]

    def _whole(self) -> Choice:
        weights = self.question.weight_bytes
        look = self._usual(weights)
        ms = None if look.resident_ms is None else look.resident_ms * self._passes(look)
        name = "all in memory" if self._in_host_memory else "all on the device"
        return Choice(name, weights, weights + look.beside_bytes, ms, False, False, look)

    def _lowvram(self, kept: int) -> Choice:
        """ComfyUI's lowvram: in each pass the rest is copied while computing."""
        look = self._usual(kept)
        link_ms = self._link_ms(self.question.weight_bytes - kept)
        ms = max(look.resident_ms or 0.0, link_ms) * self._passes(look)
        largest = max(p.numel() * p.element_size() for p in self.question.network.parameters())
        peak = kept + look.beside_bytes + largest
        return Choice("ComfyUI's lowvram", kept, peak, ms, True, False, look)

    def _best_stream(self, name: str, most_bytes: int) -> Iterator[Choice]:
        """The fastest way to stream with at most `most_bytes` on the device, if any."""
        found = [self._stream(name, look, most_bytes) for look in self.looks]
        ways = [choice for choice in found if choice is not None]
        if ways:
            yield min(ways, key=lambda choice: choice.step_ms or 0.0)

    def _stream(self, name: str, look: Look, most_bytes: int) -> Choice | None:
        allowed = min(most_bytes, _round_down(self._left_bytes(look)))
        if allowed <= 0:
            return None
        if look.problem is None:
            ms = self._link_ms(self.question.weight_bytes - allowed)
        else:
            try:
                ms = plan.make(look.problem, allowed).step_ms + look.before_ms
            except OutOfMemory:
                return None
        peak = allowed + look.beside_bytes
        least = look.problem is None
        return Choice(name, allowed, peak, ms * self._passes(look), least, True, look)

    def _left_bytes(self, look: Look) -> int:
        """Bytes left for weights next to a pass."""
        left = self.room.have_bytes - look.beside_bytes
        left -= self.carrier.slack_bytes(self.room.have_bytes)
        if look.directions == 2:  # else ComfyUI would not batch them
            at_once = int(host.AT_ONCE * self.question.needs_bytes[1])
            left = min(left, self.room.free_bytes - at_once - 1)
        return left

    def _link_ms(self, count: int) -> float:
        return max(0, count) / self.link_gb_s / 1e6

    def smallest_bytes(self) -> int | None:
        """The least memory that is enough, with Stream Model; None if unknown."""
        look = self.looks[-1]
        if self._in_host_memory:
            return self.question.weight_bytes + look.beside_bytes
        if look.problem is None:
            return None
        return plan.find_smallest_bytes(look.problem) + look.beside_bytes


def _round_down(count: int) -> int:
    """Round down to a hundredth of a GiB; less than a tenth stays as it is."""
    return int(math.floor(count / GIB * 100) / 100 * GIB) if count >= GIB // 10 else count
