"""A module whose weights come and go while it runs, under a budget it never exceeds.

Covers: hooks on and off, the first pass that traces, passes that stream, layers out of turn, a
device that is full in the middle, budgets that change, the exact way back.
Leaves to others: deciding (plan), moving (stream), several modules under one budget (group).
Promise: results are those of the module without it, bit for bit; after any exception the next call
works, and `unmanage` gives the module back as it was.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from holdfast.base.errors import BadInput, InUse, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.residency import outside, plan
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.group import Group
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.journal import Journal
from holdfast.residency.ring import aligned
from holdfast.residency.stream import Streamer
from holdfast.residency.trace import Finder, Order, Tracer
from holdfast.residency.weights import Stretch, find, owners, pack_here, take_over

ENTRIES = ("forward", "encode", "decode")
# Weights smaller than this always stay: moving them costs more than they take.
SMALL_BYTES = 64 << 10
_RETRACES = 4

Progress = Callable[[int, int], None]


@dataclass(eq=False, slots=True)
class _Call:
    """A layer that is running: where it stands in the plan (None: out of turn), what it holds."""

    path: str
    use: int | None
    bound: list[Stretch]
    aside: torch.Tensor | None = None


class Managed:
    """One module under management. Made by `manage`."""

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        *,
        keep_bytes: int | None = None,
        packed: bool = False,
        entries: Sequence[str] = ENTRIES,
        progress: Progress | None = None,
    ) -> None:
        self.module = module
        self.group = group
        self.carrier: Carrier = group.carrier
        self.journal: Journal = group.journal
        self.keep_bytes = keep_bytes
        self.packed = packed
        self.progress = progress
        self.name = type(module).__name__
        self._entries = tuple(e for e in entries if callable(getattr(module, e, None)))
        self._orders: dict[str, Order] = {}
        self._retraces = 0
        self._streamer: Streamer | None = None
        self._current: tuple[str, int] | None = None  # entry and allowance of the streamer
        self._tracer: Tracer | None = None
        self._calls: list[_Call] = []
        self._aside_bytes = 0
        self._others_peak = 0
        self._reserve = 0  # what a full device taught
        self._entered: int | None = None  # the thread that is inside
        self._astray = 0  # layers out of turn in this pass
        self._lock = threading.Lock()
        self._hooks: list[Any] = []
        self._taken = False
        self._replaced: dict[str, Any] = {}
        self._stretches: list[Stretch] = []
        self._own: dict[str, tuple[int, ...]] = {}

    # ---- on and off

    def take(self) -> None:
        """Bring the weights into slabs and put the hooks on. Goes on where it was broken off."""
        if self._taken:
            return
        if not self._stretches:
            self._stretches, self._own = find(self.module)
        packer = self._packer if self.packed else None
        with torch.no_grad():
            take_over(
                self._stretches,
                pinned=self.carrier.pinned,
                node=self.group.node,
                packer=packer,
                progress=self._loading,
            )
        outside.bring(self.module, self.carrier.device)
        self._weight_of = {id(m.tensor): s.index for s in self._stretches for m in s.members}
        self._own = {p: self._own.get(p, ()) for p, _, _ in owners(self.module)}
        outside.attach(self)
        for entry in self._entries:
            self._wrap(entry)
        self._taken = True

    def _loading(self, done: int, total: int) -> None:
        throw_exception_if_processing_interrupted()
        if self.progress is not None:
            self.progress(done, total)

    def _packer(self, raw: torch.Tensor, kind: str) -> Any:
        """Packs on the device where that is another place: it is faster by far."""
        if self.carrier.device.type == "cpu":
            return pack_here(raw, kind)
        packed = pack_here(raw.to(self.carrier.device), kind)
        return None if packed is None else (packed[0], packed[1].cpu())

    def _wrap(self, entry: str) -> None:
        original = getattr(self.module, entry)
        self._replaced[entry] = self.module.__dict__.get(entry)
        wrapped = functools.wraps(original)(functools.partial(self._enter, entry, original))
        self.module.__dict__[entry] = wrapped

    def release(self) -> None:
        """Give every weight memory of its own again and take the hooks off. Values stay."""
        self.let_go("released")
        self._unhook()
        for entry, before in self._replaced.items():
            self.module.__dict__.pop(entry, None)
            if before is not None:
                self.module.__dict__[entry] = before
        self._replaced = {}
        outside.detach(self)
        while self._stretches:
            self._stretches[-1].restore()
            self._stretches.pop()
        outside.take_back(self.module)
        self._orders, self._own = {}, {}
        self._taken = False

    # ---- memory

    @property
    def held_bytes(self) -> int:
        """What it holds on the device."""
        streaming = 0 if self._streamer is None else self._streamer.device_bytes
        return streaming + self._aside_bytes

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

    def let_go(self, reason: str) -> None:
        """Leave the device; the next pass comes back."""
        if self._streamer is not None:
            self._streamer.close(reason)
        self._streamer = None
        self._current = None
        for call in self._calls:
            for stretch in call.bound:
                stretch.unbind()
        self._calls = []
        self._aside_bytes = 0
        for stretch in self._stretches:
            stretch.unbind()
            stretch.forget_views()

    def _sample(self) -> None:
        """Note how much everyone else has on the device, while what is ours is known."""
        peak = self.carrier.others_peak_bytes(reset=True) - self.group.held_bytes
        self._others_peak = max(self._others_peak, peak)

    def allowance(self) -> int:
        """What the budget leaves for weights, with what the last passes computed."""
        if self.keep_bytes is not None:
            return self.keep_bytes + (1 << 30)
        return self.group.room_bytes - self._others_peak - self._reserve

    # ---- passes

    def _enter(self, entry: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._entered == threading.get_ident():
            return original(*args, **kwargs)
        with self._lock:
            if self._entered is not None:
                raise InUse(
                    f"cannot run {self.name}: another thread is running it",
                    expected="one pass at a time, as its layers share the memory of one ring",
                    hint="run them one after the other, or as one with residency.together",
                )
            self._entered = threading.get_ident()
        try:
            self._refuse_gradients(args, kwargs)
            with self.group.running(self):
                return self._run(entry, original, args, kwargs)
        finally:
            self._entered = None

    def _run(
        self, entry: str, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        while True:
            try:
                self._prepare(entry)
                with self.carrier.computing():
                    result = self._pass(original, args, kwargs)
                self._finish(entry)
            except (torch.OutOfMemoryError, OutOfMemory) as exc:
                self._break_off()
                self._make_room(entry, exc)
            except BaseException:
                self._break_off()
                raise
            else:
                return result

    def _pass(self, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if self._tracer is None:
            return original(*args, **kwargs)
        with Finder(self._weight_of, self._found):
            return original(*args, **kwargs)

    def _prepare(self, entry: str) -> None:
        throw_exception_if_processing_interrupted()
        order = self._orders.get(entry)
        self.carrier.others_peak_bytes(reset=True)
        if order is None:
            self.let_go("a pass is traced")
            self._hook({path for path, own in self._own.items() if own})
            self._tracer = Tracer(self.carrier)
            return
        self._arrange(entry, order)
        self._position = 0
        self._astray = 0

    def _arrange(self, entry: str, order: Order) -> None:
        """Have the streamer of this order and allowance, with what is kept already."""
        allowed = self.allowance()
        if self._current == (entry, allowed) and self._streamer is not None:
            return
        problem = self.problem(order)
        chosen = plan.make(problem, allowed, self.keep_bytes, self.name)
        if self._streamer is None or self._streamer.plan != chosen:
            inherited = {}
            if self._streamer is not None:
                inherited = self._streamer.close("the plan changed")
            self._streamer = None
            kept = {chosen.chunks[i].weights for i in chosen.kept}
            inherited = {w: memory for w, memory in inherited.items() if w in kept}
            self._paths = order.paths
            self._where = _where(order.paths)
            self._uses = order.uses
            self._streamer = Streamer(
                self.carrier, self._stretches, problem, chosen, self.journal
            )
            self._hook(self._moving(order, chosen))
            self._streamer.load(inherited, self.progress)
        self._streamer.load({}, None)
        self._current = (entry, allowed)
        self._streamer.pump()

    def problem(self, order: Order) -> plan.Problem:
        """What a plan has to solve for a pass of that order."""
        weights = tuple(
            plan.Weight(s.raw_bytes, s.payload_bytes, s.layout is not None)
            for s in self._stretches
        )
        small = min(SMALL_BYTES, self.weight_bytes // 10_000)
        staying = order.staying | {s.index for s in self._stretches if s.raw_bytes <= small}
        return plan.Problem(
            weights,
            order.uses,
            self.carrier.rates(),
            frozenset(staying),
            min(plan.CHUNK_BYTES, self.weight_bytes // 64),
        )

    def _moving(self, order: Order, chosen: plan.Plan) -> dict[str, tuple[int, ...]]:
        """The layers that have weights which do not simply stay."""
        kept = {w for i in chosen.kept for w in chosen.chunks[i].weights}
        moving: dict[str, tuple[int, ...]] = {}
        for path, use in zip(order.paths, order.uses, strict=True):
            if any(weight not in kept for weight in use.weights):
                moving[path] = use.weights
        seen = {weight for use in order.uses for weight in use.weights}
        for path, own in self._own.items():
            if own and path not in moving and not seen.issuperset(own):
                moving[path] = own
        return moving

    def _finish(self, entry: str) -> None:
        self._sample()
        if self._tracer is not None:
            tracer, self._tracer = self._tracer, None
            self._orders[entry] = tracer.order()
            self._unhook()
            self.carrier.tidy()
            return
        assert self._streamer is not None
        self._streamer.finish()
        if self._astray and self._retraces < _RETRACES:
            self._retraces += 1
            self.journal.note("evict", self.name, 0, "layers came out of turn: traced again")
            del self._orders[entry]

    def _break_off(self) -> None:
        """After an exception: nothing is running, nothing is in flight."""
        self._tracer = None
        for call in reversed(self._calls):
            for stretch in call.bound:
                stretch.unbind()
        self._calls = []
        self._aside_bytes = 0
        if self._streamer is not None:
            self._streamer.reset()

    def _make_room(self, entry: str, exc: BaseException) -> None:
        """Let a full device have more room beside weights; raises when there is nothing to give."""
        self._sample()
        order = self._orders.get(entry)
        held = self.held_bytes
        self.let_go("the device was full")
        self.carrier.tidy()
        if order is None or held == 0:
            raise OutOfMemory(
                f"cannot run {self.name} inside of {format_bytes(self.group.budget_bytes or 0)}: "
                "the device is full with one layer at a time",
                expected="room for what is computed and the largest layer",
                hint="a larger budget, smaller pictures, or fewer of them at once",
            ) from exc
        step = max(held // 8, (self.group.budget_bytes or held) // 50)
        self._reserve += step
        self.journal.note("evict", self.name, step, "the device was full: fewer weights stay")
        plan.make(self.problem(order), self.allowance(), self.keep_bytes, self.name)
        if self.keep_bytes is not None:
            self.keep_bytes = max(0, self.keep_bytes - step)

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

    # ---- layers

    def _hook(self, paths: Any) -> None:
        self._unhook()
        for path, part, whole in owners(self.module):
            if path in paths:
                self._hooks += outside.around(
                    part, whole, functools.partial(self._begin, path), self._end
                )

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begin(self, path: str) -> None:
        throw_exception_if_processing_interrupted()
        if self._tracer is not None:
            self._begin_traced(path, self._own[path])
            return
        use = self._place_of(path)
        if use is not None and self._streamer is not None:
            weights = self._uses[use].weights
            free = [self._stretches[w] for w in weights if self._stretches[w].bound is None]
            if self._streamer.begin(use, weights):
                self._calls.append(_Call(path, use, free))
                return
        self._astray += 1
        self._calls.append(self._bring_aside(path, self._own[path]))

    def _place_of(self, path: str) -> int | None:
        """Where the layer stands in the order, at or behind the present position."""
        if self._streamer is None or self._entered is None:
            return None
        places = self._where.get(path, ())
        at = bisect.bisect_left(places, self._position)
        if at == len(places):
            return None
        use = places[at]
        if any(self._hooked_between(self._position, use)):
            self._astray += 1
            self._streamer.skip(use)
        self._position = use + 1
        return use

    def _hooked_between(self, begin: int, end: int) -> Iterator[bool]:
        """Whether layers were skipped that have moving weights."""
        assert self._streamer is not None
        return (self._streamer.covers(use) for use in range(begin, end))

    def _begin_traced(self, path: str, weights: tuple[int, ...]) -> None:
        assert self._tracer is not None
        self._tracer.arriving()
        self._calls.append(self._bring_aside(path, weights))
        self._tracer.begin(path, weights)

    def _found(self, weight: int) -> None:
        """A function of torch got a weight; bring it if its layer was not called."""
        if self._tracer is None or self._stretches[weight].bound is not None:
            return
        self._tracer.taken(weight)
        held = self._bring_aside("", (weight,))
        if self._calls:
            self._calls[-1].bound += held.bound
        else:
            self._calls.append(held)

    def _bring_aside(self, path: str, weights: Sequence[int]) -> _Call:
        """Weights in memory of their own, until the layer ends."""
        absent = [self._stretches[w] for w in weights if self._stretches[w].bound is None]
        call = _Call(path, None, [])
        if not absent:
            return call
        if self._tracer is not None:
            self._sample()
        for stretch in absent:
            memory = self.carrier.empty(aligned(stretch.raw_bytes))
            self._aside_bytes += memory.numel()
            now = self.carrier.mark()
            with self.journal.labelled(stretch.name):
                self.carrier.wait(self._send(stretch, memory, now))
            stretch.bind(memory[: stretch.raw_bytes])
            call.bound.append(stretch)
        self.journal.note("demand", path, sum(s.raw_bytes for s in absent))
        return call

    def _send(self, stretch: Stretch, memory: torch.Tensor, now: Any) -> Any:
        if stretch.layout is None:
            return self.carrier.copy([(memory[: stretch.raw_bytes], stretch.host)], [now])
        payload = self.carrier.empty(stretch.payload_bytes)
        arrived = self.carrier.copy([(payload, stretch.host)], [now])
        target = memory[: stretch.raw_bytes]
        return self.carrier.decode([(payload, stretch.layout, target)], [arrived])

    def _end(self) -> None:
        if not self._calls:
            return
        if self._tracer is not None:
            self._sample()
            self._tracer.end()
        call = self._calls[-1]
        for stretch in call.bound:
            if call.use is None and stretch.bound is not None:
                self._aside_bytes -= aligned(stretch.raw_bytes)
            stretch.unbind()
            if call.use is None:
                stretch.forget_views()
        self._calls.pop()
        if call.use is not None and self._streamer is not None:
            self._streamer.end(call.use)


def _where(paths: Sequence[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        where.setdefault(path, []).append(number)
    return where


def refuse_nonsense(module: object) -> None:
    """Raises BadInput for what is no module."""
    if not isinstance(module, nn.Module):
        raise BadInput(f"cannot manage a {type(module).__name__}", expected="a torch.nn.Module")
