"""The passes of a managed module: traced, timed, streamed, several in step.

Covers: which plan is at work, a device that is full in the middle, exceptions, who is inside.
Leaves to others: single layers (layers), deciding (plan).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.errors import InUse, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.residency import plan
from holdfast.residency.in_step import Calls, Turns, borders, run_in_step
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.layers import Layers
from holdfast.residency.lora import patched_layers
from holdfast.residency.state import LOOK_MS, RETRACES, SMALL_BYTES, Lane
from holdfast.residency.stream import Streamer
from holdfast.residency.trace import Finder, Order, Stopwatch, Tracer


class Passes(Layers):
    """What happens around each call of the module."""

    def _enter(self, entry: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        me = threading.get_ident()
        if self._entered == me and self._is_inside():
            return original(*args, **kwargs)
        token = object()
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
            if self._token is token:  # it is another's when that is why this one fails
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

    def _come_in(self, thread: int, token: object | None) -> None:
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
        learned = (self._others_peak, self._reserve, self.keep_bytes)
        while True:
            began = self.journal.moment()
            try:
                self._before.forget()
                with self.carrier.computing():
                    self._prepare(entry)
                    self._before.note()
                    result = self._pass(original, args, kwargs)
                    self.journal.span("pass", entry, began, "traced" if self._tracer else "")
                    self._finish(entry)
            except (torch.OutOfMemoryError, OutOfMemory) as exc:
                self.journal.span("pass", entry, began, "broken off: the device was full")
                self._before.bring_back()
                spoiled = self._streamer is not None and self._streamer.spoiled
                self._break_off()
                if spoiled:  # what changed will stay from now on, which is another plan
                    continue
                try:
                    self._make_room(entry, exc, args, kwargs)
                except BaseException:  # what cannot run says nothing about what can
                    self._others_peak, self._reserve, self.keep_bytes = learned
                    self._peak = 0
                    raise
            except BaseException as exc:
                self.journal.span("pass", entry, began, f"broken off: {type(exc).__name__}")
                self._break_off()
                raise
            else:
                self.passes += 1
                if self._others_peak - learned[0] >= self._reserve - learned[1]:
                    self._reserve = learned[1]  # it is known now what that was for
                return result

    def _pass(self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        # Hooks of the module itself would run before its pass begins.
        if self._hooked_itself:
            self._begin("")
        finds = self._tracer is not None or self._borrows
        with Finder(self._weight_of, self._found) if finds else contextlib.nullcontext():
            result = original(*args, **kwargs)
        instead = self._end("", result) if self._hooked_itself else None
        return result if instead is None else instead

    def _prepare(self, entry: str) -> None:
        throw_exception_if_processing_interrupted()
        order = self._orders.get(entry)
        self._moving_weights = False
        self.carrier.others_peak_bytes(reset=True)
        if order is None:
            self.let_go("a pass is traced")
            self.group.tidy(loading=not self._tight)
            self._hook({path for path, own in self._own.items() if own})
            self._tracer = Tracer(self.carrier)
            return
        self._arrange(entry, order)
        self._lane.position = 0
        self._astray = 0

    def _arrange(self, entry: str, order: Order) -> None:
        """Have the streamer of this order and allowance, with what is kept already."""
        allowed = self.allowance()
        if self._streamer is None or not self._still_good(entry, allowed):
            self._plan_anew(order, allowed)
        assert self._streamer is not None
        self._streamer.load({}, None)
        self._current = (entry, allowed)
        self._streamer.pump()
        self._watch = None if order.settled else Stopwatch(self.carrier)

    def _still_good(self, entry: str, allowed: int) -> bool:
        """Whether the plan at work may stay: a little less room is no reason, if it fits."""
        if self._streamer is None or self._current is None or self._current[0] != entry:
            return False
        return self._streamer.plan.device_bytes <= allowed <= self._current[1]

    def _plan_anew(self, order: Order, allowed: int) -> None:
        self._current = None
        problem = self.planned_for = self.problem(order)
        chosen = self._planned(problem, allowed)
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
        inherited = {} if old is None else old.close("the plan changed", staying)
        inherited = {w: memory for w, memory in inherited.items() if w in staying}
        self._streamer = None
        self._paths = order.paths
        self._where = _where(order.paths)
        self._uses = order.uses
        self._needs, self._borrows = _needs(order, self._own, len(self._stretches))
        self._hook(self._moving(order, chosen))
        self._streamer = Streamer(
            self.carrier, self._stretches, problem, chosen, self.journal, self._merge
        )
        self._streamer.load(inherited, self.progress)

    def _planned(self, problem: plan.Problem, allowed: int) -> plan.Plan:
        """The best plan; where there is none, the error says which budget would do."""
        try:
            return plan.make(problem, allowed, self.keep_bytes, self.name)
        except OutOfMemory as exc:
            budget = self.group.budget_bytes
            if budget is None:
                raise
            least = plan.smallest_bytes(problem, self.keep_bytes)
            raise OutOfMemory(
                f"cannot run {self.name} inside of {format_bytes(budget)}",
                expected=f"a budget of at least {_rounded_up(budget - allowed + least)}: "
                f"{_rounded_up(least)} for its largest layer and what always stays, "
                f"{_rounded_up(budget - allowed)} beside weights",
                hint="a larger budget, smaller pictures, or fewer of them at once",
            ) from exc

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
            if own and path not in moving and not seen.issuperset(own):
                moving[path] = own
        return moving

    def _finish(self, entry: str) -> None:
        self._sample()
        self._remember()
        if self._tracer is not None:
            tracer, self._tracer = self._tracer, None
            # With packed weights the first pass builds kernels and the second captures them.
            needed = 4 if any(s.layout is not None for s in self._stretches) else 2
            self._orders[entry] = replace(tracer.order(), needed=needed)
            self._unhook()
            self._leave_all()
            self.group.tidy(loading=False)
            return
        assert self._streamer is not None
        self._leave_all()
        self._streamer.finish()
        if self._streamer.spoiled:
            self.let_go("a weight changed while it was used")
        if self._watch is not None and not self._astray:
            order = self._orders[entry] = self._watch.timed(self._orders[entry])
            if order.settled:
                self._current = None
        self._watch = None
        if self._astray and self._retraces < RETRACES:
            self._retraces += 1
            self.journal.note("evict", self.name, 0, "layers came out of turn: traced again")
            del self._orders[entry]

    def _break_off(self) -> None:
        """After an exception: nothing is running, nothing is in flight."""
        self._tracer = self._watch = None
        self._leave_all()
        if self._streamer is not None:
            self._streamer.reset()
            if self._streamer.spoiled:
                self.let_go("a weight changed while it was used")

    def _make_room(self, entry: str, exc: BaseException, args: Any, kwargs: dict[str, Any]) -> None:
        """Let a full device have more room beside weights; raises when there is nothing to give."""
        self._sample()
        order = self._orders.get(entry)
        held = self.held_bytes
        self.let_go("the device was full")
        self.carrier.tidy()
        if (order is None or held == 0) and self.group.give_way(self):
            return
        if order is None and not self._tight:
            self._tight = True  # its kernels get no room of their own
            return
        if order is not None and held == 0:
            self._planned(self.problem(order), self.allowance())  # says more, if that is why
        if order is None or held == 0:
            raise self._full(entry, args, kwargs) from exc
        step = max(held // 8, (self.group.budget_bytes or held) // 50)
        self._reserve += step
        self.journal.note("evict", self.name, step, "the device was full: fewer weights stay")
        self._planned(self.problem(order), self.allowance())
        if self.keep_bytes is not None:
            self.keep_bytes = max(0, self.keep_bytes - step)

    def _full(self, entry: str, args: Any, kwargs: dict[str, Any]) -> OutOfMemory:
        """There is no room even for one layer at a time; says which budget would do, if it can."""
        from holdfast.residency.least import least_budget_bytes  # for those who need it

        least = least_budget_bytes(self, entry, args, kwargs)
        room = "room for what is computed and the largest layer"
        budget = self.group.budget_bytes
        limit = self.carrier.total_bytes() if budget is None else budget
        return OutOfMemory(
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
        self._come_in(threading.get_ident(), None)
        try:
            self._refuse_gradients(calls, None)
            calls = [self._at_device(call) for call in calls]
            with self.group.running(self), self.journal.inside(self, self.name):
                return self._in_step(entry, original, calls)
        except (torch.OutOfMemoryError, OutOfMemory):
            pass  # several calls hold more at once: one after the other may fit
        finally:
            self._entered = None
            self.group.settle()
        wrapped = getattr(self.module, entry)
        return [wrapped(*args, **kwargs) for args, kwargs in calls]

    def _in_step(self, entry: str, original: Callable[..., Any], calls: Calls) -> list[Any]:
        lanes = [Lane(number) for number in range(len(calls))]
        turns = Turns(len(calls))

        def switch(number: int) -> None:
            self._lane, self._entered = lanes[number], threading.get_ident()

        def work(args: Any, kwargs: Any) -> Callable[[], Any]:
            return lambda: self._pass(original, args, kwargs)

        try:
            with self.carrier.computing():
                self._prepare(entry)
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
    """As text that is not less than the number."""
    shown = nbytes
    while parse_bytes(format_bytes(shown)) < nbytes:
        shown += max(1, nbytes // 200)
    return format_bytes(shown)


def _where(paths: Sequence[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        where.setdefault(path, []).append(number)
    return where
