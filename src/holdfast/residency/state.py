"""What is known of a module under management, and what it holds on its device.

Leaves to others: its layers (layers), its passes (passes), coming and going (managed).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.base.units import parse_bytes
from holdfast.residency import plan
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.group import Group
from holdfast.residency.in_step import Turns
from holdfast.residency.recording.journal import Journal
from holdfast.residency.retry import Before
from holdfast.residency.ring import aligned
from holdfast.residency.stream import Streamer
from holdfast.residency.trace import Order, Stopwatch, Tracer
from holdfast.residency.weights import Stretch

if TYPE_CHECKING:
    from holdfast.residency.recording.recorded import Recorded


ENTRIES = ("forward", "encode", "decode")
# Weights smaller than this always stay: moving them costs more than they take.
SMALL_BYTES = 64 << 10
RETRACES = 4
REMEMBERED = 8  # passes whose memory beside weights is expected again
LOOK_MS = 25.0  # how much computing there may be between two looks for an interrupt

Progress = Callable[[int, int], None]


@dataclass(eq=False, slots=True)
class Call:
    """A layer that is running: where it stands in the plan (None: out of turn), what it holds."""

    path: str | None  # None: no layer, but what a model uses between its layers
    use: int | None = None
    ring: list[Stretch] = field(default_factory=list)  # in places of the plan
    aside: list[Stretch] = field(default_factory=list)  # in memory of their own
    traced: bool = False


@dataclass(eq=False, slots=True)
class Lane:
    """One of the calls that are under way: what it has open, and where it is in the order."""

    number: int = 0
    position: int = 0
    border: int = 0
    calls: list[Call] = field(default_factory=list)


class State:
    """One module, its group, and where its weights are."""

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        keep_bytes: int | None = None,
        packed: bool = False,
        entries: Sequence[str] = ENTRIES,
        bring_inputs: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.module = module
        self.group = group
        self.carrier: Carrier = group.carrier
        self.journal: Journal = group.journal
        self.keep_bytes = keep_bytes
        self.packed = packed
        self.progress = progress
        self.when_left: Callable[[], None] | None = None  # called when others move it to the CPU
        self._bring_inputs = bring_inputs
        self.name = type(module).__name__
        self._entries = tuple(e for e in entries if callable(getattr(module, e, None)))
        self._orders: dict[str, Order] = {}
        self._retraces = 0
        self._streamer: Streamer | None = None
        self._current: tuple[str, int] | None = None  # entry and allowance of the streamer
        self._tracer: Tracer | None = None
        self._watch: Stopwatch | None = None
        self._paths: tuple[str, ...] = ()
        self._where: dict[str, list[int]] = {}
        self._uses: tuple[plan.Use, ...] = ()
        self.planned_for: plan.Problem | None = None  # what the latest plan had to solve
        self._lane = Lane()
        self._turns: Turns | None = None  # of calls that run in step
        self._borders: list[int] = []
        self._switch: Callable[[int], None] = lambda _: None
        self._needs: dict[str, tuple[int, ...]] = {}  # all that a layer was seen to use
        self._escaped: set[int] = set()  # weights that results lie in
        self._borrows = False  # whether weights are used without their layer
        self._moving_weights = False
        self._others_peak = 0  # the most that was computed beside weights, in the latest passes
        self._peaks: deque[int] = deque(maxlen=REMEMBERED)  # that of each
        self._peak = 0  # that of this one
        self._reserve = 0  # what a full device taught
        self._tight = False  # whether the budget leaves no room for kernels that are loaded
        self.passes = 0  # calls that it ran to their end
        self._entered: int | None = None  # the thread that is inside
        self._token: object | None = None  # the call that is inside, if it came by itself
        self._astray = 0  # layers out of turn in this pass
        self.door = threading.RLock()  # held by who comes in, and by who has it leave
        self.thread: int | None = None  # where it ran last
        self._hooks: list[Any] = []
        self._hooked_itself = False
        self._taken = False
        self._leaving = False
        self._replaced: dict[str, Any] = {}
        self._stretches: list[Stretch] = []
        self._own: dict[str, tuple[int, ...]] = {}
        self._weight_of: dict[int, int] = {}
        self._before = Before(module, [])

    def take(self) -> None:
        """Bring the weights under management."""
        raise NotImplementedError

    def release(self) -> None:
        """Give them back."""
        raise NotImplementedError

    @property
    def _calls(self) -> list[Call]:
        return self._lane.calls

    def _is_inside(self) -> bool:
        """Whether the call that came in is under way; Ctrl-C may have cut off its very end."""
        if self._entered is None or self._token is None:
            return self._entered is not None
        frame = sys._current_frames().get(self._entered)
        while frame is not None:
            if frame.f_code.co_name == "_enter" and frame.f_locals.get("token") is self._token:
                return True
            frame = frame.f_back
        return False

    # ---- memory

    @property
    def held_bytes(self) -> int:
        """What it holds on the device."""
        streamer = self._streamer  # others may ask while it leaves
        streaming = 0 if streamer is None else streamer.device_bytes
        aside = (aligned(s.raw_bytes) for call in self._calls for s in call.aside)
        return streaming + sum(aside)

    @property
    def weight_bytes(self) -> int:
        """All its weights."""
        return sum(stretch.raw_bytes for stretch in self._stretches)

    def set_budget(self, budget: str | int | None) -> None:
        """Change the budget of its group; what does not fit any more leaves at once."""
        self.group.set_budget(None if budget is None else parse_bytes(budget))

    @property
    def plan(self) -> plan.Plan | None:
        """The plan at work; None before the first pass."""
        return None if self._streamer is None else self._streamer.plan

    def predicted_ms(self, calls: int = 1) -> float | None:
        """How long that many calls will take, in step where they share what crosses the link."""
        if self._streamer is None:
            return None
        at_work = self._streamer.plan
        if calls == 1 or not at_work.visits:
            return at_work.step_ms * calls
        uses = tuple(replace(use, compute_ms=use.compute_ms * calls) for use in self._uses)
        problem = replace(self._streamer.problem, uses=uses)
        return plan.simulate(problem, at_work)

    @property
    def entries(self) -> tuple[str, ...]:
        """The methods of the module that are passes."""
        return self._entries

    def let_go(self, reason: str) -> None:
        """Leave the device; the next pass comes back."""
        with self.door:
            if self._streamer is not None:
                with self.journal.inside(self, self.name):
                    self._streamer.close(reason)
            self._streamer = None
            self._current = None
            for stretch in self._stretches:
                stretch.unbind()
                stretch.forget_views()
            self._lane.calls = []

    def _sample(self) -> None:
        """Note how much everyone else has on the device, while what is ours is known."""
        peak = self.carrier.others_peak_bytes(reset=True) - self.group.held_bytes
        self._peak = max(self._peak, peak)
        self._others_peak = max(self._others_peak, peak)

    def _remember(self) -> None:
        """A pass is over: those before the latest few do not count any more."""
        self._peaks.append(self._peak)
        self._peak = 0
        self._others_peak = max(self._peaks)

    def allowance(self) -> int:
        """What the budget leaves for weights, with what the last passes computed."""
        room = self.group.room_bytes - self._others_peak - self._reserve
        if self.group.weights_bytes is not None:
            room = min(room, self.group.weights_bytes)
        return room if self.keep_bytes is None else min(room, self.keep_bytes + (1 << 30))

    def budget_for(self, weights_bytes: int) -> int:
        """The smallest budget that leaves so much for weights, with what the last passes computed.

        The other way round from `allowance`: rounding takes more of a larger budget.
        """
        beside = self.carrier.outside_bytes() + self._others_peak + self._reserve
        budget, wanted = 0, weights_bytes + beside
        while budget != wanted:
            budget = wanted
            wanted = weights_bytes + beside + self.carrier.slack_bytes(budget)
        return budget

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self._is_inside()

    # ---- recording

    def recording(self, title: str = "") -> AbstractContextManager[Recorded]:
        """Record inside of the block what its group's weights do.

            with managed.recording() as recorded:
                module(**inputs)
            recorded.save("run.html")

        Raises Misuse inside of another recording.
        """
        from holdfast.residency.recording.recorded import (
            recording,  # the page is for those who look
        )

        return recording(self.group, title or self.name)

    def names(self) -> list[str]:
        """Its weights in the order of their first use; those that nobody used yet come last."""
        used = (w for order in self._orders.values() for use in order.uses for w in use.weights)
        known = dict.fromkeys(used) | dict.fromkeys(s.index for s in self._stretches)
        return [self._stretches[weight].name for weight in known]

    def kept_bytes(self) -> dict[str, int]:
        """What stays on the device now: the first weight of each chunk, and its bytes."""
        return {} if self._streamer is None else self._streamer.kept_bytes()

    def note_stays(self) -> None:
        """Tell the journal that what came over the link is there until now."""
        if self._streamer is not None:
            with self.journal.inside(self, self.name):
                self._streamer.note_stays()
