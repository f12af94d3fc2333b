"""A module under a budget that it never exceeds; its weights come and go while it runs.

The first call of a kind has no plan: each layer brings its weights, and they stay while there is
room. Every operation is watched, and repeated if it finds the device full. From the second call on
its memory is known and a plan is used.

Results are the same bits as without management, and the module's code runs once for each call.
After any exception the next call works, and `unmanage` restores the module.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.errors import InUse, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.residency import plan
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.managed import module_hooks
from holdfast.residency.managed.call_memory import CallMemory, sign
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.layers import Lane, Layers, OutOfBudget
from holdfast.residency.managed.lockstep import Calls, Turns, borders, run_in_step
from holdfast.residency.managed.loose_weights import LooseWeights
from holdfast.residency.managed.min_budget import copy_arguments, find_min_budget
from holdfast.residency.managed.occupancy import Occupancy
from holdfast.residency.managed.schedule import Progress, Schedule
from holdfast.residency.managed.trace import Order, Tracer
from holdfast.residency.managed.weight_set import WeightSet
from holdfast.residency.managed.workspaces import Workspaces
from holdfast.residency.recording.recording import ResidencyRecording, recording
from holdfast.residency.stream.weights import Payloads

ENTRIES = ("forward", "encode", "decode")
RETRACES = 4  # at most this many new traces because layers came out of turn


class Managed:
    """One managed module. Created by `manage`.

    Its parts, each in a module of its own: the weights, those outside of a plan, what calls
    compute, workspaces of libraries, the plan at work, its layers, and who is inside. Their
    methods `allowance`, `shed`, `value_of`, `is_merged` and `predicted_ms` are its own too.
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        keep_bytes: int | None = None,
        packed: bool = False,
        payloads: Payloads | None = None,
        entries: Sequence[str] = ENTRIES,
        bring_inputs: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.module = module
        self.name = type(module).__name__
        self.group = group
        self.carrier, self.journal = group.carrier, group.journal
        self.packed = packed
        self.when_left: Callable[[], None] | None = None  # called when others move it to the CPU
        self.entries = tuple(e for e in entries if callable(getattr(module, e, None)))
        self.passes = 0  # completed calls
        self._bring_inputs = bring_inputs
        self._retraces = 0
        self._taken = False  # weights are in slabs and hooks are on
        self._leaving = False
        self._replaced: dict[str, Any] = {}  # methods of the module, by entry
        self._arguments: Any = None  # of the current pass, as meta tensors
        self.weights = WeightSet(module, self.carrier, payloads)
        self.memory = CallMemory(group, keep_bytes)
        self.occupancy = Occupancy(self.name)
        self._loose = LooseWeights(self.carrier, self.journal, self.weights)
        self._workspaces = Workspaces(self.carrier)
        self._hooks = module_hooks.LayerHooks(module)
        own = (self.weights, self._loose, self.memory, self._workspaces, self._hooks)
        self.schedule = Schedule(self.name, group, *own, progress)
        self._layers = Layers(self, module, group, *own, self.occupancy, self.schedule)
        self.door = self.occupancy.door
        self.allowance, self.shed = self.memory.allowance, self._layers.shed
        self.value_of, self.is_merged = self.weights.value_of, self.weights.is_merged
        self.predicted_ms = self.schedule.predict_ms

    # ---- coming and going

    def take(self) -> None:
        """Move the weights into slabs and add the hooks. Resumes after an interrupt."""
        if self._taken:
            return
        self.weights.take(packed=self.packed, node=self.group.node, progress=self._note_progress)
        module_hooks.bring(self.module, self.carrier.device)
        self.weights.index()
        module_hooks.attach(self)
        for entry in self.entries:
            if entry not in self._replaced:
                original = getattr(self.module, entry)
                self._replaced[entry] = self.module.__dict__.get(entry)
                wrapper = functools.partial(self._enter, entry, original)
                self.module.__dict__[entry] = functools.wraps(original)(wrapper)
        self._taken = True
        self._layers.hook_all()

    def _note_progress(self, done: int, total: int) -> None:
        throw_exception_if_processing_interrupted()
        if self.schedule.progress is not None:
            self.schedule.progress(done, total)

    def release(self) -> None:
        """Give every weight its own memory again and remove the hooks. Can be called again."""
        self._leaving = True
        with self.door:  # another thread may evict it meanwhile
            self._give_back("released")
            self.carrier.tidy()
            self._detach()

    def abandon(self) -> None:
        """Drop a module that will not run again: its weights are freed, not copied back."""
        self._leaving = True
        with self.door:
            self.let_go("the module is gone")
            self._hooks.take_off()
            self.weights.index_of = {}
            self._detach()

    def _detach(self) -> None:
        module_hooks.take_back(self.module)
        for entry, before in self._replaced.items():
            self.module.__dict__.pop(entry, None)
            if before is not None:
                self.module.__dict__[entry] = before
        self.group.leave(self)
        module_hooks.detach(self)
        self._replaced, self.schedule.orders = {}, {}
        self.weights.forget()
        self.when_left = None
        self._taken = False

    def suspend(self) -> None:
        """Give the weights their own memory until the next call moves them into slabs again."""
        if not self._taken:
            return
        if self.running:
            raise InUse(
                f"cannot change the weights of {self.name} while it runs",
                expected="a call that is over",
            )
        with self.door:
            self._give_back("its weights are being changed")
            module_hooks.take_back(self.module)
            module_hooks.detach(self)
            module_hooks.mark(self)
            self.schedule.orders = {}
            self.weights.forget()
            self._taken = False

    def _give_back(self, reason: str) -> None:
        self.let_go(reason)
        self._hooks.take_off()
        self.weights.restore()

    def let_go(self, reason: str) -> None:
        """Evict everything from the device until the next pass."""
        with self.door:
            with self.journal.inside(self, self.name):
                self.schedule.close(reason)
            self.weights.unbind()
            self._loose.clear()
            self._layers.lane.calls = []
            if self._taken:
                self._layers.hook_all()

    # ---- a call

    def _enter(self, entry: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.occupancy.is_inside_here():
            return original(*args, **kwargs)
        token = threading.Lock()
        with token:  # released by C code, which Ctrl-C cannot interrupt
            try:
                self.occupancy.enter(token, self._break_off)
                if self._leaving:
                    self.release()
                    self.group.leave(self)
                    return original(*args, **kwargs)
                self.take()
                self._refuse_gradients(args, kwargs)
                args, kwargs = self._move_inputs((args, kwargs))
                with self.group.running(self), self.journal.inside(self, self.name):
                    return self._run(entry, original, args, kwargs)
            finally:
                if self.occupancy.leave(token):
                    self.group.settle()

    def _move_inputs(self, inputs: Any) -> Any:
        """Move CPU inputs to the device; callers may have read the module's device as CPU."""
        device = self.carrier.device
        if device.type == "cpu" or not self._bring_inputs:
            return inputs
        return tree_map(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x,
            inputs,
        )

    def _run(
        self, entry: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        learned = self.memory.learned()
        began = self.journal.moment()
        try:
            with self.carrier.computing():
                self._prepare(entry, args, kwargs)
                self.memory.count_failures()
                self.carrier.others_peak_bytes(reset=True)  # what left was no computing
                result = self._call(original, args, kwargs)
                if self.memory.unseen_failures() > 0:  # sums came in another order
                    raise self._layers.refuse_other_bits()
                self.journal.note_span(
                    "pass", entry, began, "traced" if self._layers.tracer else ""
                )
                self._finish(entry)
        except BaseException as exc:
            full = isinstance(exc, torch.OutOfMemoryError | OutOfMemory)
            why = "the device was full" if full else type(exc).__name__
            self.journal.note_span("pass", entry, began, f"broken off: {why}")
            self._break_off()
            if not full:
                raise
            # The traceback would keep all activations on the device alive.
            traceback.clear_frames(exc.__traceback__)
            self.memory.forget_failed(learned, without_plan=self.schedule.streamer is None)
            if isinstance(exc, OutOfBudget):  # a module that ran inside of this one said it all
                raise
            raise self._refuse(entry, args, kwargs) from exc
        self.passes += 1
        return result

    def _call(self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        layers = self._layers
        sure = layers.turns is None and self.memory.is_sure() and not self.schedule.borrows
        with contextlib.nullcontext() if sure else layers.guarding():
            if self._hooks.on_module:  # its own hooks would run before the pass begins
                layers.begin("")
            result = original(*args, **kwargs)
            instead = layers.end("", result) if self._hooks.on_module else None
        return result if instead is None else instead

    def _prepare(self, entry: str, args: Any, kwargs: dict[str, Any]) -> None:
        throw_exception_if_processing_interrupted()
        self._layers.is_moving_weights = False
        self.memory.begin(entry, args, kwargs)
        self._arguments = None if self.memory.is_sure() else copy_arguments(args, kwargs)
        order = self.schedule.orders.get(entry)
        can_plan = self.memory.is_known and not self.memory.needs_all_room()
        if not (order and can_plan and self._plan_with_room(entry, order)):
            self._go_without_plan()

    def _plan_with_room(self, entry: str, order: Order) -> bool:
        """Start a plan, a smaller one if needed; False if none fits."""
        is_empty = self.held_bytes == 0
        if self.allowance() < 2 * self._layers.largest_bytes:  # nothing could come ahead
            return False
        while not self._try_plan(entry, order):
            held = self.held_bytes
            if held == 0:  # a pass without a plan needs less
                return False
            self.let_go("the device was full")
            self.carrier.tidy()
            if is_empty:  # else what was there before may have left gaps
                more = max(held // 8, (self.group.budget_bytes or 0) // 50)
                self.memory.reserve_bytes += more
            is_empty = True
        return True

    def _try_plan(self, entry: str, order: Order) -> bool:
        """Start a plan; False if there is none or the device fills up."""
        try:
            self.schedule.arrange(entry, order)
        except (torch.OutOfMemoryError, OutOfMemory):
            return False
        self._layers.lane.position = 0
        self._layers.astray = 0
        return True

    def _go_without_plan(self) -> None:
        """Begin a pass without a plan: each layer brings the weights that are not there yet."""
        layers, loose, weights = self._layers, self._loose, self.weights
        if self.schedule.streamer is not None:
            layers.dissolve()
        loose.drop_unbound()
        self.group.tidy(loading=not layers.is_tight)
        layers.largest_bytes = weights.largest_layer_bytes()
        room, granted = self.group.room_bytes, self.group.weights_bytes
        sizes = (sum(weights.stretches[w].raw_bytes for w in own) for own in weights.own.values())
        if max(sizes, default=0) > (room if granted is None else min(room, granted)):
            raise OutOfMemory(f"the largest layer of {self.name} does not fit")
        most = room - self.memory.expected_bytes - layers.largest_bytes
        most = most if granted is None else min(most, granted)
        for key in reversed(list(loose.memory)):
            if self.held_bytes > most:
                loose.drop(key, "room for what is computed")
        layers.hook_all()
        layers.tracer = Tracer(self.carrier)

    def _finish(self, entry: str) -> None:
        layers, memory, schedule = self._layers, self.memory, self.schedule
        memory.sample()
        memory.remember()
        if layers.tracer is not None:
            tracer, layers.tracer = layers.tracer, None
            schedule.learn(entry, tracer.order())
            layers.end_all()  # weights used outside of any layer
            self.group.tidy(loading=False)
            return
        layers.end_all()
        if schedule.streamer is not None:
            schedule.streamer.finish()
            self._let_go_if_spoiled()
        else:  # dropped in the middle: the next plan leaves more room
            memory.reserve_bytes += (self.group.budget_bytes or self.weight_bytes) // 50
        if not layers.astray:
            schedule.take_times(entry)
        schedule.watch = None
        memory.never_sure = memory.reads_values or memory.signature is None
        trouble = layers.astray or memory.seen_failures or memory.never_sure
        if schedule.streamer is not None and not trouble:
            memory.note_sure()
        if layers.astray and self._retraces < RETRACES:
            self._retraces += 1
            self.journal.note("evict", self.name, 0, "layers came out of turn: traced again")
            del schedule.orders[entry]

    def _break_off(self) -> None:
        """Clean up after an exception: end all layers and drop copies in flight."""
        self._layers.tracer = self.schedule.watch = None
        self._layers.end_all()
        self._loose.drop_unbound()
        self._loose.lingering_bytes = 0
        if self.schedule.streamer is not None:
            self.schedule.streamer.reset()
            self._let_go_if_spoiled()

    def _let_go_if_spoiled(self) -> None:
        if self.schedule.streamer is not None and self.schedule.streamer.spoiled:
            self.let_go("a weight changed while it was used")

    def _refuse(self, entry: str, args: Any, kwargs: dict[str, Any]) -> OutOfBudget:
        """The error if not even one layer at a time fits."""
        if self._arguments is not None:  # as they were: the call may have changed them
            args, kwargs = self._arguments
        # What libraries will want beside results is not known before they ran.
        least = None
        if not self._workspaces:
            inside = (m.held_bytes for m in self.group.members if m is not self and m.running)
            beside = self.memory.begun_bytes + sum(inside)
            call = (entry, args, kwargs)
            least = find_min_budget(self.module, self.entries, self.weights, beside, *call)
        room = "room for what is computed and the largest layer"
        budget = self.group.budget_bytes
        limit = self.carrier.total_bytes() if budget is None else budget
        return OutOfBudget(
            f"cannot run {self.name} inside of {format_bytes(limit)}: "
            "the device is full with one layer at a time",
            expected=room
            if least is None or least <= limit
            else f"{room}: a budget of {_round_up(least)} or more",
            hint="a larger budget, smaller pictures, or fewer of them at once",
        )

    def _refuse_gradients(self, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        tensors = [*leaves, *(m.tensor for s in self.weights.stretches for m in s.members)]
        if any(tensor.requires_grad for tensor in tensors):
            raise Unsupported(
                f"cannot record gradients through {self.name}: its weights move while it runs",
                expected="torch.no_grad() or torch.inference_mode()",
                hint="with torch.no_grad(): …, or residency.unmanage(module) to train it",
            )

    # ---- calls in step

    def can_run_together(self, entry: str) -> bool:
        """Whether calls would share copies: the layer order is known and some weights stream."""
        order = self.schedule.orders.get(entry)
        ready = order is not None and order.settled and self.schedule.is_current
        return ready and not self.running and self.plan is not None and bool(self.plan.visits)

    def run_together(self, entry: str, calls: Calls) -> list[Any]:
        """The results of several calls, run in step. See `together`."""
        own = functools.partial(getattr(type(self.module), entry), self.module)
        original = self._replaced.get(entry) or own  # user code may have replaced it
        token = threading.Lock()
        with token:
            try:
                self.occupancy.enter(token, self._break_off)
                self._refuse_gradients(calls, None)
                calls = [self._move_inputs(call) for call in calls]
                with self.group.running(self), self.journal.inside(self, self.name):
                    if self._fits_in_step(entry, calls):
                        return self._run_in_step(entry, original, calls)
            finally:
                if self.occupancy.leave(token):
                    self.group.settle()
        wrapped = getattr(self.module, entry)
        return [wrapped(*args, **kwargs) for args, kwargs in calls]

    def _fits_in_step(self, entry: str, calls: Calls) -> bool:
        """Whether all of them fit at once, by the peak of each when it ran alone."""
        signatures = [sign(entry, args, kwargs)[0] for args, kwargs in calls]
        known = [self.memory.known_peak(signature) for signature in signatures]
        if None in known or not self.memory.varying.isdisjoint(signatures):
            return False
        self.memory.signature = None
        self.memory.expected_bytes = sum(peak for peak in known if peak is not None)
        if not self._try_plan(entry, self.schedule.orders[entry]):
            self.memory.expected_bytes = 0
            return False
        return bool(self.plan is not None and self.plan.visits)

    def _run_in_step(self, entry: str, original: Callable[..., Any], calls: Calls) -> list[Any]:
        layers = self._layers
        lanes = [Lane(number) for number in range(len(calls))]
        turns = Turns(len(calls))

        def switch(number: int) -> None:
            layers.lane, self.occupancy.entered = lanes[number], threading.get_ident()

        try:
            with self.carrier.computing():
                throw_exception_if_processing_interrupted()
                layers.is_moving_weights = False
                self.carrier.others_peak_bytes(reset=True)
                assert self.plan is not None
                layers.borders = borders(self.plan, len(self.schedule.uses))
                layers.turns, layers.switch = turns, switch
                work = [functools.partial(self._call, original, *call) for call in calls]
                began = self.journal.moment()
                results = run_in_step(self.carrier, work, turns, switch)
                self.journal.note_span("pass", entry, began, f"{len(calls)} calls in step")
                layers.turns, layers.lane = None, lanes[-1]
                self._finish(entry)
        except BaseException:
            layers.turns = None
            for lane in lanes:
                layers.lane = lane
                layers.end_all()
            self._break_off()
            raise
        self.passes += len(calls)
        return results

    # ---- as a member of its group

    @property
    def running(self) -> bool:
        """Whether a pass is running."""
        return self.occupancy.is_inside()

    @property
    def held_bytes(self) -> int:
        """Its device memory."""
        streamer = self.schedule.streamer  # others may ask while it leaves
        return self._loose.held_bytes + (0 if streamer is None else streamer.device_bytes)

    @property
    def weight_bytes(self) -> int:
        """Size of all its weights."""
        return self.weights.total_bytes

    # ---- queries

    @property
    def plan(self) -> plan.Plan | None:
        """The current plan; None before the first pass."""
        return None if self.schedule.streamer is None else self.schedule.streamer.plan

    @property
    def repeated_ops(self) -> int:
        """Operations that found the device full and were repeated."""
        return self._layers.repeated_ops

    def set_budget(self, budget: str | int | None) -> None:
        """Change the budget of its group; what no longer fits is evicted at once."""
        self.group.set_budget(None if budget is None else parse_bytes(budget))

    def recording(self, title: str = "") -> AbstractContextManager[ResidencyRecording]:
        """Record in the block what its group's weights do.

            with managed.recording() as recorded:
                module(**inputs)
            recorded.save("run.html")

        Raises Misuse inside of another recording.
        """
        return recording(self.group, title or self.name)

    def names(self) -> list[str]:
        """Its weights in the order of first use; unused ones come last."""
        orders = self.schedule.orders.values()
        used = (weight for order in orders for use in order.uses for weight in use.weights)
        known = dict.fromkeys(used) | dict.fromkeys(s.index for s in self.weights.stretches)
        return [self.weights.stretches[weight].name for weight in known]

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of each kept chunk, by the name of its first weight."""
        return {} if self.schedule.streamer is None else self.schedule.streamer.kept_bytes()

    def note_stays(self) -> None:
        """Record in the journal that streamed weights are on the device until now."""
        if self.schedule.streamer is not None:
            with self.journal.inside(self, self.name):
                self.schedule.streamer.note_stays()


def _round_up(nbytes: int) -> str:
    """Format bytes with four digits, rounded up."""
    unit, factor = next(((name, size) for name, size in _UNITS if nbytes >= size), ("B", 1))
    digits = max(0, 4 - len(str(nbytes // factor))) if factor > 1 else 0
    steps = -(-nbytes * 10**digits // factor)
    return f"{steps / 10**digits:.{digits}f} {unit}"


_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
