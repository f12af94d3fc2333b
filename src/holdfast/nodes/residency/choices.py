"""How a model of ComfyUI can be run on its device, how long each way takes, and the best of them.

Covers: everything on the device, Stream Model, ComfyUI's own lowvram; one direction of guidance
after the other or both at once, as ComfyUI decides it.
Leaves to others: what ComfyUI would do (host.fitting), following a network and timing its layers
(residency.prediction), plans (residency.plan), the words (fitting).
Promise: weights stay where they are and are not read. A time is predicted from layers that were
timed, or it is None, or `least`: then nothing can be faster.
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
from holdfast.residency.prediction.case import Ask, case_of
from holdfast.residency.prediction.packable import Packing
from holdfast.residency.prediction.profile import Profile, profile
from holdfast.residency.prediction.rates import (
    Times,
    collecting_later,
    device_name,
    facts_of,
    measured,
    times_of,
)
from holdfast.residency.prediction.shapes import Call

GIB = 1 << 30
# A pass of the CPU that seems to take longer is estimated: nobody waits minutes for an answer.
_MEASURED_ON_CPU_MS = 3000.0
_AS_GOOD = 1.02  # what is simpler may take that much longer


@dataclass(frozen=True, slots=True)
class Look:
    """One pass of a network. Without a problem nobody could follow it, and `why` says why."""

    directions: int  # of guidance, computed at once
    beside_bytes: int  # what is computed, and inputs
    resident_ms: float | None
    before_ms: float
    problem: plan.Problem | None
    way: str  # "measured", "estimated", "simulated", or "bound"
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run the model. `least` is a time that nothing can be faster than."""

    name: str
    weights_bytes: int  # on the device
    peak_bytes: int
    step_ms: float | None
    least: bool
    stream: bool
    look: Look


@dataclass(frozen=True, slots=True)
class Answer:
    """The choices that fit, the simplest first, and the best of them; None: nothing fits.

    `look` is the pass that the best choice makes, or would. `smallest_bytes` is what would do.
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
        """For all steps; NaN where it was not predicted."""
        if self.best is None or self.best.step_ms is None or self.best.least:
            return math.nan
        return self.best.step_ms * self.steps / 1000

    @property
    def stream(self) -> bool:
        """Whether Stream Model is the best setting."""
        return self.best is not None and self.best.stream

    @property
    def budget_gb(self) -> float:
        """What Stream Model is given then, in GiB; else 0."""
        return self.best.weights_bytes / GIB if self.best is not None and self.stream else 0.0


def answer(
    question: host.Question,
    *,
    steps: int = 20,
    cfg: float = 8.0,
    budget_bytes: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Answer:
    """What there is to choose, and the best of it.

    `budget_bytes` is what the model and its computing may take; None is what ComfyUI would have.
    `tell` is told how far it is, (done, total). Raises NotFound for a device that nobody knows, or
    whatever `tell` raises.
    """
    guided = not math.isclose(cfg, 1.0)
    carrier = carrier_for(question.device)
    looks: list[Look] = []
    wanted = (2, 1) if guided else (1,)
    with collecting_later():
        for number, directions in enumerate(wanted):
            if tell is not None:
                tell(number, len(wanted))
            looks.append(_look(question, directions, carrier))
        link_gb_s = facts_of(carrier).rates.link_gb_s
    if tell is not None:
        tell(len(wanted), len(wanted))
    room = question.room if budget_bytes is None else question.room.of(budget_bytes)
    finder = _Finder(question, room, carrier, tuple(looks), guided, link_gb_s)
    found = finder.fitting()
    best = _best(found)
    return Answer(
        device=_words(carrier),
        have_bytes=room.have_bytes,
        steps=steps,
        guided=guided,
        choices=tuple(found),
        best=best,
        look=looks[-1] if best is None else best.look,
        smallest_bytes=finder.smallest_bytes() if best is None else None,
    )


def _best(found: list[Choice]) -> Choice | None:
    """The fastest; of those about as fast the first, as where no time is known."""
    times = {i: c.step_ms for i, c in enumerate(found) if c.step_ms is not None and not c.least}
    if not times:
        return found[0] if found else None
    fastest = min(times.values())
    return found[next(i for i, ms in times.items() if ms <= fastest * _AS_GOOD)]


def _words(carrier: Carrier) -> str:
    name = device_name(carrier)
    return carrier.name if name in (carrier.name, "") else f"{carrier.name} ({name})"


# ---- one pass


def _look(question: host.Question, directions: int, carrier: Carrier) -> Look:
    try:
        inputs = question.inputs(directions)
        # As stored, in doubles of their own: the real ones may lie in memory that they share.
        found = profile(question.network, Call("forward", inputs), lambda _, tensor: tensor.dtype)
    except HoldfastError as exc:
        needs = question.needs_bytes[directions - 1]
        return Look(directions, needs, None, 0.0, None, "bound", exc.what)
    times = _times(found, carrier)
    ask = Ask(carrier, None, None, None, False, None, None)
    facts = facts_of(carrier)
    packing = Packing.of(facts.schemes, next(question.network.parameters()).dtype)
    case = case_of(ask, found, times, facts, packing)
    problem = case.problem(packed=pays(carrier))  # as Stream Model does
    whole_ms = problem.compute_ms + case.before_ms
    return Look(directions, case.beside_bytes, whole_ms, case.before_ms, problem, times.way)


def _times(found: Profile, carrier: Carrier) -> Times:
    """Measured also on the CPU, where that takes seconds."""
    times = times_of(found, carrier)
    guess_ms = sum(times.layers_ms) + times.before_ms
    if times.way != "estimated" or carrier.device.type != "cpu" or guess_ms > _MEASURED_ON_CPU_MS:
        return times
    return dataclasses.replace(measured(found, carrier), activation_bytes=None)


# ---- choices


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds the choices. `looks` are passes with both directions and with one, or with one."""

    question: host.Question
    room: host.Room
    carrier: Carrier
    looks: tuple[Look, ...]
    guided: bool
    link_gb_s: float

    @property
    def _in_host_memory(self) -> bool:
        """Whether the host computes: then there is no link, and nothing to stream."""
        return self.carrier.name.partition(":")[0] == "cpu"

    def fitting(self) -> list[Choice]:
        """Those that fit, the simplest first."""
        return [c for c in self._choices() if c.peak_bytes <= self.room.have_bytes]

    def _choices(self) -> Iterator[Choice]:
        weights = self.question.weight_bytes
        kept = self.room.kept_bytes(self.question.needs_bytes[0])
        if self._in_host_memory:
            yield self._whole()
            return
        if weights <= kept:
            yield self._whole()
            # It could leave room for others; how much that costs is worth knowing.
            yield from self._streamed("Stream Model, half of it", weights // 2)
            return
        yield from self._streamed("Stream Model", weights)
        if kept > 0:
            yield self._lowvram(kept)

    def _passes(self, look: Look) -> int:
        """Calls of the network in a step."""
        return 2 // look.directions if self.guided else 1

    def _usual(self, weights_bytes: int) -> Look:
        """The pass that ComfyUI makes with that much of the weights on the device."""
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
        """ComfyUI's own: what is not kept crosses the link in each pass, beside computing."""
        look = self._usual(kept)
        link_ms = self._link_ms(self.question.weight_bytes - kept)
        ms = max(look.resident_ms or 0.0, link_ms) * self._passes(look)
        largest = max(p.numel() * p.element_size() for p in self.question.network.parameters())
        peak = kept + look.beside_bytes + largest
        return Choice("ComfyUI's lowvram", kept, peak, ms, True, False, look)

    def _streamed(self, name: str, most_bytes: int) -> Iterator[Choice]:
        """The faster way of streaming with at most that much of the device, if there is one."""
        found = [self._stream(name, look, most_bytes) for look in self.looks]
        ways = [choice for choice in found if choice is not None]
        if ways:
            yield min(ways, key=lambda choice: choice.step_ms or 0.0)

    def _stream(self, name: str, look: Look, most_bytes: int) -> Choice | None:
        allowed = min(most_bytes, _rounded(self._left_bytes(look)))
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
        """What is left for weights beside that pass."""
        left = self.room.have_bytes - look.beside_bytes
        left -= self.carrier.slack_bytes(self.room.have_bytes)
        if look.directions == 2:  # else ComfyUI would compute one after the other
            at_once = int(host.AT_ONCE * self.question.needs_bytes[1])
            left = min(left, self.room.free_bytes - at_once - 1)
        return left

    def _link_ms(self, count: int) -> float:
        return max(0, count) / self.link_gb_s / 1e6

    def smallest_bytes(self) -> int | None:
        """What would do, with Stream Model; None where nobody knows."""
        look = self.looks[-1]
        if self._in_host_memory:
            return self.question.weight_bytes + look.beside_bytes
        if look.problem is None:
            return None
        return plan.smallest_bytes(look.problem) + look.beside_bytes


def _rounded(count: int) -> int:
    """Down to a hundredth of a GiB, as a person would write it; small ones stay as they are."""
    return int(math.floor(count / GIB * 100) / 100 * GIB) if count >= GIB // 10 else count
