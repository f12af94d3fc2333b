"""The passes of a managed module: traced, timed, streamed, several in step.

A call of a kind that was not seen before has no plan: each layer brings its weights, and they stay
as long as room remains. Every operation is watched then, so that one that finds the device full is
repeated by itself. From the second call of a kind on its memory is known, and a plan is at work.

Covers: which plan is at work, exceptions, who is inside.
Leaves to others: single layers (layers), operations (guard), deciding (plan).
Promise: the module's own code runs once for each call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.errors import InUse, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.residency import plan
from holdfast.residency.in_step import Calls, Turns, borders, run_in_step
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.layers import Layers, OutOfBudget
from holdfast.residency.least import copy_arguments, least_budget_bytes
from holdfast.residency.lora import patched_layers
from holdfast.residency.signature import Signature, sign
from holdfast.residency.state import LOOK_MS, RETRACES, SMALL_BYTES, Lane
from holdfast.residency.stream import Streamer
from holdfast.residency.trace import Order, Stopwatch, Tracer


class Passes(Layers):
    """What happens around each call of the module."""

    def _enter(self, entry: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if self._entered == me and self._is_inside():
            return original(*args, **kwargs)
        token = threading.Lock()
        with token:  # C code lets go of it, which Ctrl-C cannot cut off
            try:
                self._come_in(me, token)
                if self._leaving:
                    self.release()
                    self.group.leave(self)
                    return original(*args, **kwargs)
                self.take()
                self._refuse_gradients(args, kwargs)
                args, kwargs = self._at_device((args, kwargs))
                with self.group.running(self), self.journal.inside(self, self.name):
                    return self._run(entry, original, args, kwargs)
            finally:
                self._go_out(token)

    def _go_out(self, token: Any) -> None:
        if self._token is token:  # it is another's when that is why this call fails
            self._entered = None
            self._token = None
            self.group.settle()

    def _at_device(self, inputs: Any) -> Any:
        """Inputs with those on the host brought over: asked where it is, a module may say there."""
        device = self.carrier.device
        if device.type == "cpu" or not self._bring_inputs:
            return inputs
        return tree_map(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x,
            inputs,
        )

    def _come_in(self, thread: int, token: Any) -> None:
        with self.door:
            if self._is_inside():
                raise InUse(
                    f"cannot run {self.name}: another thread is running it",
                    expected="one pass at a time, as its layers share the memory of one ring",
                    hint="run them one after the other, or as one with residency.together",
                )
            if self._entered is not None:
                self._break_off()
            self._entered, self._token = thread, token
            self.thread = thread

    def _run(
        self, entry: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        learned = (self._others_peak, self._reserve)
        began = self.journal.moment()
        try:
            with self.carrier.computing():
                self._prepare(entry, args, kwargs)
                self._failures, self._seen_failures = self.carrier.failures(), 0
                self.carrier.others_peak_bytes(reset=True)  # what left was no computing
                result = self._pass(original, args, kwargs)
                self._refuse_other_bits()
                self.journal.span("pass", entry, began, "traced" if self._tracer else "")
                self._finish(entry)
        except BaseException as exc:
            full = isinstance(exc, torch.OutOfMemoryError | OutOfMemory)
            why = "the device was full" if full else type(exc).__name__
            self.journal.span("pass", entry, began, f"broken off: {why}")
            self._break_off()
            if not full:
                raise
            # Who keeps the error would keep all that was computed on the device.
            traceback.clear_frames(exc.__traceback__)
            # What cannot run says nothing about what can.
            self._others_peak, self._reserve = learned
            self._peak = 0
            self._sure.clear()
            if self._streamer is None and self._signature is not None:
                self._refused_at[self._signature] = self.group.budget_bytes or 0
            if isinstance(exc, OutOfBudget):  # a module that ran inside of this one said it all
                raise
            raise self._full(entry, args, kwargs) from exc
        self.passes += 1
        return result

    def _pass(self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        # Hooks of the module itself would run before its pass begins.
        sure = self._turns is None and self._is_sure()
        with contextlib.nullcontext() if sure and not self._borrows else self._guarding():
            if self._hooked_itself:
                self._begin("")
            result = original(*args, **kwargs)
            instead = self._end("", result) if self._hooked_itself else None
        return result if instead is None else instead

    def _is_sure(self) -> bool:
        """Whether a pass of this kind has run under the plan at work, and found all its memory."""
        begun = None if self._signature is None else self._sure.get(self._signature)
        if begun is None:
            return False
        slack = self.carrier.slack_bytes(self.group.budget_bytes or 0) // 8
        return self._begun_bytes <= begun + slack  # else somebody took memory since

    def _prepare(self, entry: str, args: Any, kwargs: dict[str, Any]) -> None:
        throw_exception_if_processing_interrupted()
        before, (self._signature, nbytes) = self._signature, sign(entry, args, kwargs)
        if self._signature != before:  # calls of another kind leave gaps of another size
            self.carrier.tidy()
        self._moving_weights = self._reads_values = False
        self._peak = 0
        self.carrier.others_peak_bytes(reset=True)
        self._begun_bytes = self.carrier.others_bytes() - self.group.held_bytes
        order, known = self._orders.get(entry), self._known_peak(self._signature)
        self._expected_bytes = self._predict(nbytes) if known is None else known
        if self._signature is not None:
            self._input_bytes[self._signature] = nbytes
        self._arguments = None if self._is_sure() else copy_arguments(args, kwargs)
        can_plan = order is not None and known is not None and not self._needs_all_room()
        if not (order and can_plan and self._plan_with_room(entry, order)):
            self._go_without_plan()

    def _needs_all_room(self) -> bool:
        """Whether values decide shapes, or a budget not much smaller was too small for such a call.

        A plan needs a little more than a pass without one.
        """
        signature, budget = self._signature, self.group.budget_bytes
        if signature is None or signature in self._varying:
            return True
        refused = self._refused_at.get(signature)
        return refused is not None and budget is not None and 4 * budget < 5 * refused

    def _plan_with_room(self, entry: str, order: Order) -> bool:
        """Have a plan at work, a smaller one if need be; False if there is none that fits."""
        is_empty = self.held_bytes == 0
        if self.allowance() < 2 * self._largest_bytes:  # nothing could come ahead
            return False
        while not self._try_plan(entry, order):
            held = self.held_bytes
            if held == 0:  # a pass without a plan needs less
                return False
            self.let_go("the device was full")
            self.carrier.tidy()
            if is_empty:  # else what was there before may have left gaps
                self._reserve += max(held // 8, (self.group.budget_bytes or 0) // 50)
            is_empty = True
        return True

    def _try_plan(self, entry: str, order: Order) -> bool:
        """Have a plan at work; False if there is none, or the device is full while it begins."""
        try:
            self._arrange(entry, order)
        except (torch.OutOfMemoryError, OutOfMemory):
            return False
        return True

    def _known_peak(self, signature: Signature | None) -> int | None:
        """What such a call computed beside weights, perhaps with other integers."""
        if signature is None:
            return None
        known = self._peak_of.get(signature)
        return self._peak_beside_integers.get(signature[0]) if known is None else known

    def _predict(self, input_bytes: int) -> int:
        """What a call computes beside weights, from calls with other inputs."""
        known = [
            peak * max(1.0, input_bytes / max(1, self._input_bytes.get(signature, 1)))
            for signature, peak in self._peak_of.items()
        ]
        return int(min(known, default=0))

    def _go_without_plan(self) -> None:
        """Begin a pass in which each layer brings its weights, with what is there already."""
        if self._streamer is not None:
            self._dissolve()
        self._drop_unbound()
        self.group.tidy(loading=not self._tight)
        self._largest_bytes = max(map(self._bytes_of, self._own.values()), default=0)
        room, granted = self.group.room_bytes, self.group.weights_bytes
        layers = ([self._stretches[w].raw_bytes for w in own] for own in self._own.values())
        if max(map(sum, layers), default=0) > (room if granted is None else min(room, granted)):
            raise OutOfMemory(f"the largest layer of {self.name} does not fit")
        most = room - self._expected_bytes - self._largest_bytes
        most = most if granted is None else min(most, granted)
        for key in reversed(list(self._loose)):
            if self.held_bytes > most:
                self._drop(key, "room for what is computed")
        self.hook_all()
        self._tracer = Tracer(self.carrier)

    def _drop_unbound(self) -> None:
        """Ctrl-C may have come between memory and its use."""
        for key in list(self._loose):
            if any(self._stretches[weight].bound is None for weight in key):
                self._drop(key, "nobody used it")

    def _arrange(self, entry: str, order: Order) -> None:
        """Have the streamer of this order and allowance, with what is kept already."""
        allowed = self.allowance()
        if self._streamer is None or not self._still_good(entry, allowed):
            self._plan_anew(order, allowed)
        assert self._streamer is not None
        self._streamer.load({}, None)
        self._current = (entry, allowed)
        self._streamer.pump()
        # To watch operations takes time: a pass that will not be watched tells the true times.
        is_watched = not (self._is_sure() or self._borrows or self._is_never_sure)
        self._watch = None if order.settled or is_watched else Stopwatch(self.carrier)
        self._lane.position = 0
        self._astray = 0

    def _still_good(self, entry: str, allowed: int) -> bool:
        """Whether the plan at work may stay: a little less room is no reason, if it fits."""
        if self._streamer is None or self._current is None or self._current[0] != entry:
            return False
        return self._streamer.plan.device_bytes <= allowed <= self._current[1]

    def _plan_anew(self, order: Order, allowed: int) -> None:
        self._current = None
        for weight in (weight for key in self._loose for weight in key):
            self._stretches[weight].bring_home_if_changed()
        problem = self.planned_for = self.problem(order)
        chosen = plan.make(problem, allowed, self.keep_bytes, self.name)
        old = self._streamer
        if old is not None and self._paths == order.paths and old.serves(problem, allowed):
            now_ms = plan.simulate(problem, old.plan)
            if now_ms <= chosen.step_ms * 1.01:
                old.adopt(problem, now_ms)
                self._uses = order.uses
                self._hook(self._moving(order, old.plan))
                return
        patched = {self._weight_of.get(key) for key in patched_layers(self.module)}
        kept = (chosen.chunks[i].weights for i in chosen.kept)
        staying = {weights for weights in kept if not patched.intersection(weights)}
        self._sure.clear()
        inherited = {} if old is None else old.close("the plan changed", staying)
        self._drop_unbound()
        for key in list(self._loose):
            memory = self._loose[key]
            if key in staying and memory.numel() == self._bytes_of(key):
                inherited[key] = memory
            self._drop(key, "a plan was made")
        memory = None
        inherited = {w: memory for w, memory in inherited.items() if w in staying}
        self._streamer = None
        self.carrier.tidy()
        if self.carrier.gaps_bytes() > self.carrier.slack_bytes(allowed) // 4:
            inherited.clear()  # to copy it again costs less than the gaps around it
            self.carrier.tidy()
        self._paths = order.paths
        self._where = _where(order.paths)
        self._uses = order.uses
        self._needs, self._borrows = _needs(order, self._own, len(self._stretches))
        self._hook(self._moving(order, chosen))
        self._streamer = Streamer(
            self.carrier, self._stretches, problem, chosen, self.journal, self._merge
        )
        self._streamer.load(inherited, self.progress)

    def problem(self, order: Order) -> plan.Problem:
        """What a plan has to solve for a pass of that order."""
        weights = tuple(
            plan.Weight(s.raw_bytes, s.payload_bytes, s.layout is not None) for s in self._stretches
        )
        small = min(SMALL_BYTES, self.weight_bytes // 10_000)
        staying = order.staying | self._escaped
        staying |= {s.index for s in self._stretches if s.raw_bytes <= small or s.stays}
        return plan.Problem(
            weights,
            order.uses,
            self.carrier.rates(packed=any(weight.packed for weight in weights)),
            frozenset(staying),
            min(plan.CHUNK_BYTES, self.weight_bytes // 64),
        )

    def _moving(self, order: Order, chosen: plan.Plan) -> dict[str, tuple[int, ...]]:
        """The layers that have weights which do not simply stay."""
        if not order.settled:  # all are timed
            return dict.fromkeys(order.paths, ()) | {p: own for p, own in self._own.items() if own}
        kept = {w for i in chosen.kept for w in chosen.chunks[i].weights}
        moving: dict[str, tuple[int, ...]] = {}
        now_ms = 0.0
        for path, use in zip(order.paths, order.uses, strict=True):
            due = now_ms >= LOOK_MS  # also where all stays, an interrupt is looked for
            if due or any(weight not in kept for weight in use.weights):
                moving[path] = use.weights
                now_ms = 0.0
            now_ms += use.compute_ms
        seen = {weight for use in order.uses for weight in use.weights}
        for path, own in self._own.items():
            if path in self._workspaces or not seen.issuperset(own):
                moving.setdefault(path, own)
        return moving

    def _finish(self, entry: str) -> None:
        self._sample()
        self._remember()
        if self._tracer is not None:
            tracer, self._tracer = self._tracer, None
            self._learn(entry, tracer.order())
            while self._calls:  # what was used outside of any layer
                self._leave()
            self.group.tidy(loading=False)
            return
        self._leave_all()
        if self._streamer is not None:
            self._streamer.finish()
            if self._streamer.spoiled:
                self.let_go("a weight changed while it was used")
        else:  # given up in the middle: the next plan leaves more room
            self._reserve += (self.group.budget_bytes or self.weight_bytes) // 50
        if self._watch is not None and not self._astray:
            order = self._orders[entry] = self._watch.timed(self._orders[entry])
            if order.settled:
                self._current = None
        self._watch = None
        self._is_never_sure = self._reads_values or self._signature is None
        trouble = self._astray or self._seen_failures or self._is_never_sure
        if self._streamer is not None and self._signature is not None and not trouble:
            before = self._sure.get(self._signature, 0)
            self._sure[self._signature] = max(before, self._begun_bytes)
        if self._astray and self._retraces < RETRACES:
            self._retraces += 1
            self.journal.note("evict", self.name, 0, "layers came out of turn: traced again")
            del self._orders[entry]

    def _refuse_other_bits(self) -> None:
        """Raises OutOfMemory where a library had no room for its workspace and said nothing.

        It took another algorithm then, whose sums come in another order.
        """
        unseen = self.carrier.failures() - self._failures - self._seen_failures
        if unseen > 0:
            raise self._no_workspace()

    def _learn(self, entry: str, order: Order) -> None:
        """A pass without a plan is over: its order is known now."""
        known = self._orders.get(entry)
        if known is not None and known.paths == order.paths:
            uses = zip(known.uses, order.uses, strict=True)
            if known.staying == order.staying and all(a.weights == b.weights for a, b in uses):
                return
        # With packed weights the first pass builds kernels and the second captures them.
        needed = 4 if any(s.layout is not None for s in self._stretches) else 2
        self._orders[entry] = replace(order, needed=needed)

    def _break_off(self) -> None:
        """After an exception: nothing is running, nothing is in flight."""
        self._tracer = self._watch = None
        self._leave_all()
        self._drop_unbound()
        self._lingering_bytes = 0
        if self._streamer is not None:
            self._streamer.reset()
            if self._streamer.spoiled:
                self.let_go("a weight changed while it was used")

    def _full(self, entry: str, args: Any, kwargs: dict[str, Any]) -> OutOfBudget:
        """There is no room even for one layer at a time; says which budget would do, if it can."""
        if self._arguments is not None:  # as they were: the call may have changed them
            args, kwargs = self._arguments
        # What libraries will want beside results is not known before they ran.
        least = None if self._workspaces else least_budget_bytes(self, entry, args, kwargs)
        room = "room for what is computed and the largest layer"
        budget = self.group.budget_bytes
        limit = self.carrier.total_bytes() if budget is None else budget
        return OutOfBudget(
            f"cannot run {self.name} inside of {format_bytes(limit)}: "
            "the device is full with one layer at a time",
            expected=room
            if least is None or least <= limit
            else f"{room}: a budget of {_rounded_up(least)} or more",
            hint="a larger budget, smaller pictures, or fewer of them at once",
        )

    def _refuse_gradients(self, args: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        tensors = [*leaves, *(m.tensor for s in self._stretches for m in s.members)]
        if any(tensor.requires_grad for tensor in tensors):
            raise Unsupported(
                f"cannot record gradients through {self.name}: its weights move while it runs",
                expected="torch.no_grad() or torch.inference_mode()",
                hint="with torch.no_grad(): …, or residency.unmanage(module) to train it",
            )

    # ---- calls in step

    def can_run_together(self, entry: str) -> bool:
        """Whether calls would share what crosses the link: its order is known, and some does."""
        order = self._orders.get(entry)
        ready = order is not None and order.settled and self._current is not None
        return ready and not self.running and self.plan is not None and bool(self.plan.visits)

    def run_together(self, entry: str, calls: Calls) -> list[Any]:
        """The results of several calls, run in step. See `together`."""
        own = functools.partial(getattr(type(self.module), entry), self.module)
        original = self._replaced.get(entry) or own  # somebody may have put another one there
        token = threading.Lock()
        with token:
            try:
                self._come_in(threading.get_ident(), token)
                self._refuse_gradients(calls, None)
                calls = [self._at_device(call) for call in calls]
                with self.group.running(self), self.journal.inside(self, self.name):
                    if self._can_be_in_step(entry, calls):
                        return self._in_step(entry, original, calls)
            finally:
                self._go_out(token)
        wrapped = getattr(self.module, entry)
        return [wrapped(*args, **kwargs) for args, kwargs in calls]

    def _can_be_in_step(self, entry: str, calls: Calls) -> bool:
        """Whether there is room for all of them at once, by what each took when it ran alone."""
        signatures = [sign(entry, args, kwargs)[0] for args, kwargs in calls]
        known = [self._known_peak(signature) for signature in signatures]
        if None in known or not self._varying.isdisjoint(signatures):
            return False
        self._signature = None
        self._expected_bytes = sum(peak for peak in known if peak is not None)
        if not self._try_plan(entry, self._orders[entry]):
            self._expected_bytes = 0
            return False
        return bool(self.plan is not None and self.plan.visits)

    def _in_step(self, entry: str, original: Callable[..., Any], calls: Calls) -> list[Any]:
        lanes = [Lane(number) for number in range(len(calls))]
        turns = Turns(len(calls))

        def switch(number: int) -> None:
            self._lane, self._entered = lanes[number], threading.get_ident()

        def work(args: Any, kwargs: Any) -> Callable[[], Any]:
            return lambda: self._pass(original, args, kwargs)

        try:
            with self.carrier.computing():
                throw_exception_if_processing_interrupted()
                self._moving_weights = False
                self.carrier.others_peak_bytes(reset=True)
                assert self.plan is not None
                self._borders = borders(self.plan, len(self._uses))
                self._turns, self._switch = turns, switch
                jobs = [work(args, kwargs) for args, kwargs in calls]
                began = self.journal.moment()
                results = run_in_step(self, jobs, turns, switch)
                self.journal.span("pass", entry, began, f"{len(calls)} calls in step")
                self._turns, self._lane = None, lanes[-1]
                self._finish(entry)
        except BaseException:
            self._turns = None
            for lane in lanes:
                self._lane = lane
                self._leave_all()
            self._break_off()
            raise
        self.passes += len(calls)
        return results


def _needs(
    order: Order, own: dict[str, tuple[int, ...]], count: int
) -> tuple[dict[str, tuple[int, ...]], bool]:
    """All that each layer may use, and whether weights are used without their layer.

    Weights that no layer used may be used like that some day.
    """
    needs = {path: dict.fromkeys(weights) for path, weights in own.items()}
    for path, use in zip(order.paths, order.uses, strict=True):
        needs.setdefault(path, {}).update(dict.fromkeys(use.weights))
    borrows = any(len(needs[path]) > len(own.get(path, ())) for path in needs)
    seen = {weight for use in order.uses for weight in use.weights} | order.staying
    return {path: tuple(found) for path, found in needs.items()}, borrows or len(seen) < count


def _rounded_up(nbytes: int) -> str:
    """As text with four digits that is not less than the number."""
    unit, factor = next(((name, size) for name, size in _UNITS if nbytes >= size), ("B", 1))
    digits = max(0, 4 - len(str(nbytes // factor))) if factor > 1 else 0
    steps = -(-nbytes * 10**digits // factor)
    return f"{steps / 10**digits:.{digits}f} {unit}"


_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


def _where(paths: Sequence[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        where.setdefault(path, []).append(number)
    return where
