"""What happens when a layer of a managed module begins and ends: its weights come and go.

Weights come by the current plan, or on demand into memory of their own: in a pass without a plan,
for layers out of turn, for weights used without their layer, for layers called from outside.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.managed.call_memory import CallMemory
from holdfast.residency.managed.group import Group, Member
from holdfast.residency.managed.lockstep import Turns
from holdfast.residency.managed.loose_weights import LooseWeights
from holdfast.residency.managed.module_hooks import LayerHooks
from holdfast.residency.managed.occupancy import Occupancy
from holdfast.residency.managed.op_guard import Guard
from holdfast.residency.managed.schedule import Schedule
from holdfast.residency.managed.trace import Tracer
from holdfast.residency.managed.weight_set import WeightSet
from holdfast.residency.managed.workspaces import Workspaces
from holdfast.residency.stream.ring import aligned
from holdfast.residency.stream.weights import Stretch, is_plain

T = TypeVar("T")


class OutOfBudget(OutOfMemory):
    """A call does not fit its budget; the text names the smallest that does, if known."""


@dataclass(eq=False, slots=True)
class LayerCall:
    """A layer that is running: its use in the plan (None: out of turn) and the weights it holds."""

    path: str | None  # None: no layer, but what a model uses between its layers
    use: int | None = None
    ring: list[Stretch] = field(default_factory=list)  # at addresses of the plan
    aside: list[Stretch] = field(default_factory=list)  # in memory of their own
    traced: bool = False


@dataclass(eq=False, slots=True)
class Lane:
    """One of the calls that run in step: its open layers, and how far it is in the order."""

    number: int = 0
    position: int = 0
    border: int = 0
    calls: list[LayerCall] = field(default_factory=list)


class Layers:
    """Begins and ends the layers of one module, and brings weights for the operation guard."""

    def __init__(
        self,
        member: Member,
        module: nn.Module,
        group: Group,
        weights: WeightSet,
        loose: LooseWeights,
        memory: CallMemory,
        workspaces: Workspaces,
        hooks: LayerHooks,
        occupancy: Occupancy,
        schedule: Schedule,
    ) -> None:
        self._owner, self._module, self._name = weakref.ref(member), module, member.name
        self._group, self._carrier, self._journal = group, group.carrier, group.journal
        self._weights, self._loose, self._memory = weights, loose, memory
        self._workspaces, self._hooks = workspaces, hooks
        self._occupancy, self._schedule = occupancy, schedule
        hooks.call(self.begin, self.end)
        self.lane = Lane()
        self.turns: Turns | None = None  # of calls that run in step
        self.borders: list[int] = []
        self.switch: Callable[[int], None] = lambda _: None
        self.tracer: Tracer | None = None  # in a pass without a plan
        self.is_moving_weights = False  # torch operations are ours, not the module's
        self.astray = 0  # layers out of turn in this pass
        self.repeated_ops = 0
        self.largest_bytes = 0  # the weights of the largest layer
        self.is_tight = False  # whether the budget leaves no room for kernels that are loaded
        self._is_guarded = False  # every operation is watched

    def _member(self) -> Member:
        """The managed module; held weakly, so that memory is freed without a garbage collection."""
        owner = self._owner()
        assert owner is not None
        return owner

    @property
    def _calls(self) -> list[LayerCall]:
        return self.lane.calls

    def hook_all(self) -> None:
        """Put hooks on every layer with weights, so that it brings them whoever calls it."""
        self._hooks.put_on({path for path, own in self._weights.own.items() if own})

    # ---- begin

    def begin(self, path: str) -> None:
        """Begin a layer: get its weights onto the device."""
        throw_exception_if_processing_interrupted()
        if not self._occupancy.is_mine():
            self._enter_layer(path)
        if self.turns is not None:
            self._come_to_border(path)
        call = LayerCall(path)
        self._calls.append(call)  # first of all, so that its end finds it whatever happens
        before, self.is_moving_weights = self.is_moving_weights, True  # `moving`, but faster
        try:
            if path in self._workspaces and not self._is_guarded:
                self._have_workspace(path)
            if self.tracer is not None:
                self._begin_traced(call, self._weights.own[path])
                return
            use = self._find_use(path)
            if use is None or not self._stream(call, use):
                self.astray += 1
                has_plan = self._schedule.streamer is not None
                if has_plan and not self._is_guarded and self.turns is None:
                    self.dissolve()  # its ring is the room for what comes out of turn
                self._bring_aside(call, self._schedule.needs.get(path, self._weights.own[path]))
        finally:
            self.is_moving_weights = before

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        """Mark operations in the block as ours, not the module's."""
        before, self.is_moving_weights = self.is_moving_weights, True
        try:
            yield
        finally:
            self.is_moving_weights = before

    def _enter_layer(self, path: str) -> None:
        """A layer was called from outside of the module: run it as a pass without a plan."""
        stack = self._occupancy.enter_layer(path, self._module.get_submodule(path))
        self._memory.note_begin()
        self._carrier.others_peak_bytes(reset=True)
        stack.enter_context(self._journal.inside(self._member(), self._name))
        stack.enter_context(self._carrier.computing())
        stack.enter_context(self.guarding())

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Watch every operation in the block."""
        before, self._is_guarded = self._is_guarded, True
        try:
            with Guard(self, self._weights.index_of):
                yield
        finally:
            self._is_guarded = before

    def _stream(self, call: LayerCall, use: int) -> bool:
        """Get the weights of a use by the plan; False if the plan cannot."""
        schedule = self._schedule
        if schedule.streamer is None:
            return False
        weights = schedule.uses[use].weights
        stretches = self._weights.stretches
        call.ring = [stretches[w] for w in weights if stretches[w].bound is None]
        if schedule.watch is not None:
            schedule.watch.arriving()
        if not schedule.streamer.begin(use, weights):
            call.ring = []
            return False
        if schedule.watch is not None:
            schedule.watch.begin(use)
        call.use = use
        return True

    def _find_use(self, path: str) -> int | None:
        """The next use of the layer from here on; None inside of a layer that was traced alone."""
        streamer = self._schedule.streamer
        if streamer is None or self._occupancy.is_layer_alone:
            return None
        if any(c.use is not None and streamer.covers(c.use) for c in self._calls):
            return None
        use = self._next_use(path)
        if use is None:
            return None
        if any(streamer.covers(skipped) for skipped in range(self.lane.position, use)):
            self.astray += 1
            if self._leads:
                streamer.skip(use)
        self.lane.position = use + 1
        return use

    def _next_use(self, path: str) -> int | None:
        uses = self._schedule.uses_of.get(path, ())
        at = bisect.bisect_left(uses, self.lane.position)
        return uses[at] if at < len(uses) else None

    def _begin_traced(self, call: LayerCall, weights: tuple[int, ...]) -> None:
        assert self.tracer is not None
        assert call.path is not None
        self.tracer.arriving()
        self._bring_aside(call, weights)
        self.tracer.begin(call.path, weights)
        call.traced = True

    def _bring_aside(self, call: LayerCall, weights: Sequence[int]) -> None:
        """Copy weights into memory of their own until the layer ends."""
        stretches = self._weights.stretches
        absent = [stretches[w] for w in weights if stretches[w].bound is None]
        if not absent:
            return
        self._memory.sample()
        for stretch in absent:
            take = functools.partial(self._carrier.empty, aligned(stretch.raw_bytes))
            try:
                memory = self._with_room(take)
            except OutOfMemory as exc:
                raise self.refuse(exc) from None
            with self._journal.labelled(stretch.name):
                mark = self._weights.send(stretch, memory, self._note_failure)
            self._journal.wait(stretch.name, mark, "loaded on demand")
            call.aside.append(stretch)
            self._loose.add(stretch, memory)
        self._journal.note("demand", call.path or self._name, sum(s.raw_bytes for s in absent))

    def _note_failure(self) -> None:
        self._memory.seen_failures += 1

    # ---- what the guard of operations asks

    def bring(self, weight: int) -> None:
        """Bring a weight that an operation is about to use; its layer may not have been called."""
        own = self._weights.own
        is_open = any(weight in own.get(call.path or "", ()) for call in self._calls)
        if self.tracer is not None and not is_open:
            self.tracer.taken(weight)
        if self._weights.stretches[weight].bound is not None:
            return
        if self.tracer is None:
            self.astray += 1
        if not self._calls:
            self._calls.append(LayerCall(None))
        with self._moving():
            self._bring_aside(self._calls[-1], (weight,))

    def refuse(self, full: BaseException) -> BaseException:
        """The error for a lack of room. Callers of the whole module get a more detailed one."""
        if not self._occupancy.is_layer_alone:
            return full
        path = next((call.path for call in self._calls if call.path), "a part")
        budget = self._group.budget_bytes
        refused = OutOfMemory(
            f"cannot run {path} of {self._name} inside of "
            f"{format_bytes(self._carrier.total_bytes() if budget is None else budget)}",
            expected="room for its weights and what it computes",
            hint="a larger budget, smaller pictures, or fewer of them at once",
        )
        refused.__cause__ = full
        return refused

    def note_values(self, is_shape: bool) -> None:
        """Record that operations from here on may depend on values."""
        self._memory.note_values(is_shape)

    def note_repeat(self, name: str) -> None:
        """Count an operation that is repeated because the device was full."""
        self.repeated_ops += 1
        self._journal.note("evict", self._name, 0, f"the device was full: {name} was repeated")

    def make_room(self, used: Sequence[torch.Tensor]) -> bool:
        """Free some device memory, but not that of `used`; False if there is none to free."""
        self._note_failure()
        self._memory.sample()
        with self._moving():
            found = self._group.make_room(self._member(), used)
        self._carrier.others_peak_bytes(reset=True)  # what left was no computing
        return found

    def make_room_ahead(self, used: Sequence[torch.Tensor], key: Hashable) -> None:
        """Free as much memory as a library wants for this operation. Raises OutOfBudget."""
        if not self._carrier.workspace_bytes():
            return
        known = self._workspaces.known(key)
        wanted = known or self._workspaces.guess(used)
        if not known:
            self._memory.sample()
        with self._moving():
            while not self._carrier.has_room(wanted):
                if self.make_room(used):
                    continue
                if known:
                    raise self.refuse_other_bits()
                break
        if known:
            self._note_wanted(known)
        else:
            self._workspaces.start()

    def note_workspace(self, key: Hashable, result: Any) -> None:
        """Record what the operation of the latest `make_room_ahead` took."""
        if not self._carrier.workspace_bytes() or self._workspaces.known(key) is not None:
            return
        taken = self._workspaces.measure(key, result)
        if taken is None:
            raise self.refuse_other_bits()
        self._note_wanted(taken)

    def _note_wanted(self, wanted: tuple[int, ...]) -> None:
        path = self._calls[-1].path if self._calls else None
        self._workspaces.note(path, self._memory.signature, wanted)

    def _have_workspace(self, path: str) -> None:
        """Have room for all workspaces of a layer in a pass that is not watched."""
        wanted = self._workspaces.of_layer(path, self._memory.signature)
        if self._carrier.has_room(wanted):
            return
        self._note_failure()
        if self._schedule.streamer is not None and self.turns is None:
            self.dissolve()
            self._leave_rings()
            self._carrier.tidy()
        if not self._carrier.has_room(wanted):
            self._note_failure()
            raise self.refuse_other_bits()

    def refuse_other_bits(self) -> OutOfBudget:
        """The error if a library would choose another algorithm for lack of memory."""
        return OutOfBudget(
            f"cannot run {self._name} with the same bits: a library has no room for its workspace, "
            "and would take another algorithm",
            expected="room for the workspaces of convolutions",
            hint="a larger budget",
        )

    # ---- making room

    def _with_room(self, take: Callable[[], T], used: Sequence[torch.Tensor] = ()) -> T:
        """Call `take`, freeing memory until it succeeds. Raises OutOfMemory."""
        while True:
            try:
                return take()
            except (torch.OutOfMemoryError, OutOfMemory):
                if not self.make_room(used):
                    raise

    def shed(self, used: Sequence[torch.Tensor]) -> bool:
        """Free weights that neither an open layer nor `used` has, if the pass is watched."""
        if not self._is_guarded or self.turns is not None:
            return False
        self._memory.sample()
        had_plan = self._schedule.streamer is not None
        if had_plan:
            self.dissolve()
        freed = self._drop_a_quarter(used)
        if self._leave_rings(used) or freed or had_plan:
            self._carrier.tidy()
            return True
        if not self.is_tight:
            self.is_tight = True  # kernels that are loaded get no room of their own
            self._group.tidy(loading=False)
            return True
        return False

    def _drop_a_quarter(self, used: Sequence[torch.Tensor]) -> bool:
        """Drop a quarter of the loose weights that nothing uses; whether any could be dropped."""
        open_weights = {
            w for call in self._calls for w in self._weights.own.get(call.path or "", ())
        }
        open_weights |= {s.index for call in self._calls for s in call.ring}
        storages = {x.untyped_storage().data_ptr() for x in used if is_plain(x) and not x.is_meta}
        free = [
            key
            for key, memory in self._loose.memory.items()
            if open_weights.isdisjoint(key)
            and memory.untyped_storage().data_ptr() not in storages
            and not self._loose.is_held(key)
        ]
        wanted = sum(self._loose.memory[key].numel() for key in free) // 4
        freed = 0
        for key in reversed(free):  # in a pass like the last one, it is needed last
            freed += self._loose.memory[key].numel()
            self._loose.drop(key, "the device was full")
            if freed > wanted:
                break
        return freed > 0

    def dissolve(self) -> None:
        """Drop the plan in the middle of a pass; kept weights stay until they are evicted."""
        self._schedule.dissolve({s.index for call in self._calls for s in call.ring})
        for call in self._calls:
            call.use = None
        self.hook_all()

    def _leave_rings(self, used: Sequence[torch.Tensor] = ()) -> bool:
        """Have open layers leave a ring that was given up; False if views in `used` hold it."""
        index_of = self._weights.index_of
        views = [x for x in used if is_plain(x) and not x.is_meta and id(x) not in index_of]
        held = {x.untyped_storage().data_ptr() for x in views}
        rings = [s.bound for call in self._calls for s in call.ring if s.bound is not None]
        lying = any(x.untyped_storage().data_ptr() in held for x in rings)
        if not self._loose.lingering_bytes or lying:
            return False
        moving = [(call, [s.index for s in call.ring]) for call in self._calls if call.ring]
        for call, _ in moving:
            for stretch in call.ring:
                stretch.unbind()
                stretch.forget_views()
            call.ring = []
        self._loose.lingering_bytes = 0
        self._carrier.tidy()
        for call, weights in moving:
            self._bring_aside(call, weights)
        return True

    def _may_stay(self) -> bool:
        """Whether a weight may stay after its layer, in a pass without a plan."""
        if self.tracer is None or self._loose.lingering_bytes:
            return False
        most = [x for x in (self._memory.keep_bytes, self._group.weights_bytes) if x is not None]
        if most and self._member().held_bytes > min(most):
            return False
        others = self._carrier.others_bytes()
        computed = others - self._group.held_bytes
        more = max(self._memory.peak_bytes, self._memory.expected_bytes) - computed
        spare = self.largest_bytes + max(0, more) + self._carrier.workspace_bytes()
        return self._group.room_bytes - others >= spare

    # ---- end

    def end(self, path: str, output: Any = None) -> Any:
        """End a layer, also after an exception. Returns a replacement for its output, or None."""
        found = [i for i, call in enumerate(self._calls) if call.path == path]
        if not found:
            return None
        before, self.is_moving_weights = self.is_moving_weights, True
        try:
            instead = self._copy_out(self._calls[found[-1]], output)
            while len(self._calls) > found[-1]:
                self._end_innermost()
        finally:
            self.is_moving_weights = before
            if self._occupancy.is_layer_alone and not self._calls:
                self._occupancy.leave_layer()
                self._group.settle()
        return instead

    def _copy_out(self, call: LayerCall, output: Any) -> Any:
        """Copy results that are views of ring weights; the next plan keeps those weights."""
        held = [(s, s.bound.data_ptr()) for s in (*call.ring, *call.aside) if s.bound is not None]
        spans = [(s, begin, begin + s.raw_bytes) for s, begin in held]
        inside: set[int] = set()
        for leaf in tree_leaves(output) if spans else ():
            if isinstance(leaf, torch.Tensor) and is_plain(leaf) and not leaf.is_meta:
                at = leaf.data_ptr()
                found = [s for s, begin, end in spans if begin <= at < end]
                self._weights.escaped.update(s.index for s in found)
                if any(stretch in call.ring for stretch in found):
                    inside.add(id(leaf))
        if not inside:
            return None
        return tree_map(
            lambda leaf: self._with_room(leaf.clone, [leaf]) if id(leaf) in inside else leaf, output
        )

    def _end_innermost(self) -> None:
        call = self._calls[-1]
        if call.traced and self.tracer is not None:
            self._memory.sample()
            self.tracer.end()
            call.traced = False
        elif call.aside:
            self._memory.sample()
        for stretch in call.ring:
            stretch.unbind()
        for stretch in call.aside:
            key = (stretch.index,)
            if key not in self._loose.memory:
                continue
            if self._may_stay() or self._loose.is_held(key):
                self._journal.note("keep", stretch.name, stretch.raw_bytes)
            else:
                self._journal.note_stay(stretch.name, stretch.raw_bytes)
                self._loose.forget(key)
        self._calls.pop()
        if not any(other.ring for other in self._calls):
            self._loose.lingering_bytes = 0
        streamer = self._schedule.streamer
        if streamer is None:
            return
        if any(stretch.stays for stretch in call.ring):
            streamer.spoiled = True
        if call.use is not None and self._leads:
            streamer.end(call.use)

    def end_all(self) -> None:
        """End all open layers."""
        while self._calls:
            self._end_innermost()

    # ---- calls in step

    def _come_to_border(self, path: str) -> None:
        """Let the other calls catch up before this one overwrites weights they still need."""
        lane, turns = self.lane, self.turns
        use = self._next_use(path)
        if turns is None or use is None or self.borders[use] <= lane.border:
            return
        lane.border = self.borders[use]
        turns.border(lane.number, lane.border)
        self.switch(lane.number)

    @property
    def _leads(self) -> bool:
        """Whether weights this call has finished with can be freed: no other call needs them."""
        return self.turns is None or self.turns.is_last(self.lane.number)
