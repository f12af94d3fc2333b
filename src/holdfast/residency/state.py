"""What is known of a module under management, and what it holds on its device.

Leaves to others: its layers (layers), its passes (passes), coming and going (managed).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.base.units import parse_bytes
from holdfast.residency import plan
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.group import Group
from holdfast.residency.in_step import Turns
from holdfast.residency.recording.journal import Journal
from holdfast.residency.ring import aligned
from holdfast.residency.signature import Signature
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
MARGIN = 32  # of what a pass computes, one part more is left free
SIGNATURES = 256  # kinds of calls whose memory is remembered
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
        self._loose: dict[tuple[int, ...], torch.Tensor] = {}  # device memory outside of any plan
        self._holders: dict[tuple[int, ...], int] = {}  # how many tensors lie there by our doing
        self._lingering_bytes = 0  # of a ring that was given up while a layer used it
        self._signature: Signature | None = None  # that of the pass under way
        self._peak_of: dict[Signature, int] = {}  # what calls computed beside weights
        self._peak_beside_integers: dict[Hashable, int] = {}  # that with any integers
        self._input_bytes: dict[Signature, int] = {}
        # Calls that the plan at work served without trouble, and what others had when they began.
        self._sure: dict[Signature, int] = {}
        self._varying: set[Signature] = set()  # calls whose shapes depend on values
        self._refused_at: dict[Signature, int] = {}  # budgets in which calls found no room
        self._reads_values = False  # whether this pass looked at values
        self._expected_bytes = 0  # what this pass will compute beside weights, as far as is known
        self._largest_bytes = 0  # the weights of its largest layer
        self._begun_bytes = 0  # what others had on the device when this pass began
        self._is_guarded = False  # whether every operation is watched
        self._outside: tuple[nn.Module, contextlib.ExitStack] | None = (
            None  # a part that was called
        )
        self._arguments: Any = None  # those of the pass under way, without values
        # What libraries want in a layer, by the kind of the call.
        self._workspaces: dict[str, dict[Signature | None, tuple[int, ...]]] = {}
        self._before_op = (0, 0)  # bytes on the device, failures: before an operation not yet known
        self._is_never_sure = False  # whether the pass before looked at values, or is like no other
        self._seen_failures = 0  # how often this pass got to know of that
        self._failures = 0  # how often the device had refused memory when this pass began
        self.repeated_ops = 0  # operations that found the device full and were repeated
        self._others_peak = 0  # the most that was computed beside weights, in the latest passes
        self._peaks: deque[int] = deque(maxlen=REMEMBERED)  # that of each
        self._peak = 0  # that of this one
        self._reserve = 0  # what a full device taught
        self._tight = False  # whether the budget leaves no room for kernels that are loaded
        self.passes = 0  # calls that it ran to their end
        self._entered: int | None = None  # the thread that is inside
        self._token: Any = None  # a lock that the call inside holds for as long as it runs
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
        if self._entered is None:
            return False
        if self._outside is not None and _is_called(self._outside[0], self._entered):
            return True
        return self._token is not None and self._token.locked()

    # ---- memory

    @property
    def held_bytes(self) -> int:
        """What it holds on the device."""
        streamer = self._streamer  # others may ask while it leaves
        streaming = 0 if streamer is None else streamer.device_bytes
        loose = sum(memory.numel() for memory in list(self._loose.values()))
        return streaming + loose + self._lingering_bytes

    @property
    def weight_bytes(self) -> int:
        """All its weights."""
        return sum(stretch.raw_bytes for stretch in self._stretches)

    @property
    def begun_bytes(self) -> int:
        """What others had on the device when the latest pass began."""
        return self._begun_bytes

    def sizes_and_owners(self) -> tuple[list[int], dict[str, tuple[int, ...]]]:
        """What each weight takes on the device, and which of them each layer has by itself."""
        return [aligned(s.raw_bytes) for s in self._stretches], self._own

    def strides(self) -> dict[int, tuple[int, ...]]:
        """The strides of its tensors by their `id`, also where they have no memory now."""
        return {id(m.tensor): m.stride for s in self._stretches for m in s.members}

    def weight_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the weight that a tensor is in; None for one that does not move."""
        return self._weight_of.get(id(tensor))

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
            self._sure.clear()
            for stretch in self._stretches:
                stretch.unbind()
                stretch.forget_views()
            self._loose.clear()
            self._holders.clear()
            self._lingering_bytes = 0
            self._lane.calls = []
            if self._taken:
                self.hook_all()

    def hook_all(self) -> None:
        """Have every layer that has weights bring them, whoever calls it."""
        raise NotImplementedError

    def shed(self, used: Sequence[torch.Tensor]) -> bool:
        """Free memory of weights that no open layer has, nor `used`; False if there is none."""
        raise NotImplementedError

    def _sample(self) -> None:
        """Note how much everyone else has on the device, while what is ours is known."""
        peak = self.carrier.others_peak_bytes(reset=True) - self.group.held_bytes
        self._peak = max(self._peak, peak)
        self._others_peak = max(self._others_peak, peak)

    def _remember(self) -> None:
        """A pass is over: those before the latest few do not count any more."""
        self._peaks.append(self._peak)
        self._others_peak = max(self._peaks)
        if self._signature is not None:
            self._peak_of[self._signature] = max(self._peak, self._peak_of.get(self._signature, 0))
            coarse = self._signature[0]
            most = max(self._peak, self._peak_beside_integers.get(coarse, 0))
            self._peak_beside_integers[coarse] = most
        tables: list[dict[Any, int]] = [self._peak_of, self._input_bytes, self._refused_at]
        for table in (*tables, self._peak_beside_integers):
            while len(table) > SIGNATURES:
                del table[next(iter(table))]
        self._peak = self._expected_bytes = 0

    def allowance(self) -> int:
        """What the budget leaves for weights, with what the last passes computed."""
        beside = max(self._others_peak, self._expected_bytes)
        beside += beside // MARGIN  # passes of one kind differ a little
        room = self.group.room_bytes - beside - self._reserve
        if self.group.weights_bytes is not None:
            room = min(room, self.group.weights_bytes)
        return room if self.keep_bytes is None else min(room, self.keep_bytes + (1 << 30))

    def budget_for(self, weights_bytes: int) -> int:
        """The smallest budget that leaves so much for weights, with what the last passes computed.

        The other way round from `allowance`: rounding takes more of a larger budget.
        """
        beside = self._others_peak + self._others_peak // MARGIN + self._reserve
        beside += self.carrier.outside_bytes()
        budget, wanted = 0, weights_bytes + beside
        while budget != wanted:
            budget = wanted
            wanted = weights_bytes + beside + self.carrier.slack_bytes(budget)
        return budget

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self._is_inside()

    @property
    def runs_here(self) -> bool:
        """Whether a pass is under way in this thread."""
        return self._entered == threading.get_ident() and self._is_inside()

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


def _is_called(part: nn.Module, thread: int) -> bool:
    """Whether a thread is inside of a call of that module."""
    frame = sys._current_frames().get(thread)
    try:
        while frame is not None:
            if frame.f_code in _CALLS and frame.f_locals.get("self") is part:
                return True
            frame = frame.f_back
    finally:
        del frame  # a frame that knows itself keeps all that is on the stack
    return False


_CALLS = (nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__)
