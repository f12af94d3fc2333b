"""The layers of a managed module as they begin and end.

Covers: hooks, weights brought by the plan or aside, layers out of turn, weights that are used
without their layer, layers that are called from outside, what leaves when memory is short, results
that lie in a weight, LoRAs merged into what stays.
Leaves to others: whole passes (passes), who leaves first (group).
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.errors import InUse, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.residency import outside
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.guard import Guard, tensors_in
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.lora import merge_into, patched_layers
from holdfast.residency.ring import aligned
from holdfast.residency.slabs import unwatched
from holdfast.residency.state import Call, State
from holdfast.residency.weights import Stretch, is_plain, owners

T = TypeVar("T")

# What operations took on each device, by their shapes: result, workspace.
_taken: weakref.WeakKeyDictionary[Carrier, dict[Hashable, tuple[int, ...]]]
_taken = weakref.WeakKeyDictionary()


class OutOfBudget(OutOfMemory):
    """A call that its budget has no room for; the text names the smallest that has, if known."""


class Layers(State):
    """What happens around each layer."""

    def _merge(self, stretch: Stretch) -> None:
        """Have the LoRAs of a weight that came to stay in its copy on the device."""
        layers = patched_layers(self.module)
        for member in stretch.members if layers else ():
            layer = layers.get(id(member.tensor))
            if layer is not None and stretch.bound is not None:
                stretch.merged |= merge_into(self.module, layer, member.over(stretch.bound))

    def is_merged(self, layer: nn.Module) -> bool:
        """Whether the weight of a layer on the device has its LoRAs in it."""
        index = self._weight_of.get(id(layer.weight))
        return index is not None and self._stretches[index].merged

    def _hook(self, paths: Any) -> None:
        self._unhook()
        for path, part, whole in owners(self.module):
            if part is self.module and not whole:
                self._hooked_itself = path in paths
            elif path in paths:
                begin = functools.partial(self._begin, path)
                end = functools.partial(self._end, path)
                outside.around(part, whole, begin, end, self._hooks)

    def hook_all(self) -> None:
        """Have every layer that has weights bring them, whoever calls it."""
        self._hook({path for path, own in self._own.items() if own})

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._hooked_itself = False

    def _begin(self, path: str) -> None:
        throw_exception_if_processing_interrupted()
        if self._entered is None or not self._is_mine():
            self._come_from_outside(path)
        if self._turns is not None:
            self._come_to_border(path)
        call = Call(path)
        self._calls.append(call)  # first of all, so that its end finds it whatever happens
        before, self._moving_weights = self._moving_weights, True  # `_touch_weights`, but faster
        try:
            if path in self._workspaces and not self._is_guarded:
                self._have_workspace(path)
            if self._tracer is not None:
                self._begin_traced(call, self._own[path])
                return
            use = self._place_of(path)
            if use is None or not self._stream(call, use):
                self._astray += 1
                if self._streamer is not None and not self._is_guarded and self._turns is None:
                    self._dissolve()  # its ring is the room for what comes out of turn
                self._bring_aside(call, self._needs.get(path, self._own[path]))
        finally:
            self._moving_weights = before

    @contextlib.contextmanager
    def _touch_weights(self) -> Iterator[None]:
        """What is done to weights inside is no use of them."""
        before, self._moving_weights = self._moving_weights, True
        try:
            yield
        finally:
            self._moving_weights = before

    # ---- layers that are called from outside

    def _is_mine(self) -> bool:
        """Whether this thread is the one inside."""
        return self._entered == threading.get_ident()

    def _come_from_outside(self, path: str) -> None:
        """A layer is called by itself: it is a pass of its own, in which nothing is planned."""
        part = self.module.get_submodule(path)
        with self.door:
            if self._entered is not None and self._is_inside():
                raise InUse(
                    f"cannot run {path} of {self.name}: another thread is running that",
                    expected="one pass at a time, as its layers share the memory of one ring",
                    hint="run them one after the other",
                )
            stack = contextlib.ExitStack()
            if self._outside is not None:  # its end was cut off
                self._outside[1].close()
            self._outside = (part, stack)
            self._entered = self.thread = threading.get_ident()
        self._begun_bytes = self.carrier.others_bytes() - self.group.held_bytes
        self.carrier.others_peak_bytes(reset=True)
        stack.enter_context(self.journal.inside(self, self.name))
        stack.enter_context(self.carrier.computing())
        stack.enter_context(self._guarding())

    def _leave_outside(self) -> None:
        if self._outside is None or self._calls:
            return
        _, stack = self._outside
        self._outside = None
        self._entered = None
        stack.close()
        self.group.settle()

    @contextlib.contextmanager
    def _guarding(self) -> Iterator[None]:
        """Inside, every operation is watched."""
        before, self._is_guarded = self._is_guarded, True
        try:
            with Guard(self, self._weight_of):
                yield
        finally:
            self._is_guarded = before

    # ---- weights for a layer

    def _stream(self, call: Call, use: int) -> bool:
        """Have the weights of a use where the plan says; False if it cannot."""
        if self._streamer is None:
            return False
        weights = self._uses[use].weights
        call.ring = [self._stretches[w] for w in weights if self._stretches[w].bound is None]
        if self._watch is not None:
            self._watch.arriving()
        if not self._streamer.begin(use, weights):
            call.ring = []
            return False
        if self._watch is not None:
            self._watch.begin(use)
        call.use = use
        return True

    def _place_of(self, path: str) -> int | None:
        """Where the layer stands in the order, at or behind the present position.

        None inside of a layer that did not contain others when it was traced: its own weights
        must not make room before it ends.
        """
        if self._streamer is None or self._outside is not None:
            return None
        if any(c.use is not None and self._streamer.covers(c.use) for c in self._calls):
            return None
        use = self._next_use(path)
        if use is None:
            return None
        if any(self._hooked_between(self._lane.position, use)):
            self._astray += 1
            if self._leads:
                self._streamer.skip(use)
        self._lane.position = use + 1
        return use

    def _next_use(self, path: str) -> int | None:
        places = self._where.get(path, ())
        at = bisect.bisect_left(places, self._lane.position)
        return places[at] if at < len(places) else None

    def _hooked_between(self, begin: int, end: int) -> Iterator[bool]:
        """Whether layers were skipped that have moving weights."""
        assert self._streamer is not None
        return (self._streamer.covers(use) for use in range(begin, end))

    def _begin_traced(self, call: Call, weights: tuple[int, ...]) -> None:
        assert self._tracer is not None
        assert call.path is not None
        self._tracer.arriving()
        self._bring_aside(call, weights)
        self._tracer.begin(call.path, weights)
        call.traced = True

    @property
    def is_moving_weights(self) -> bool:
        """Whether operations of torch are done to weights here."""
        return self._moving_weights

    def bring(self, weight: int) -> None:
        """An operation of torch is about to use a weight; its layer may not have been called."""
        bound = self._stretches[weight].bound is not None
        if self._tracer is not None and not self._is_open(weight):
            self._tracer.taken(weight)
        if bound:
            return
        if self._tracer is None:
            self._astray += 1
        if not self._calls:
            self._calls.append(Call(None))
        with self._touch_weights():
            self._bring_aside(self._calls[-1], (weight,))

    def _is_open(self, weight: int) -> bool:
        """Whether it belongs to a layer that is running."""
        return any(weight in self._own.get(call.path or "", ()) for call in self._calls)

    def refusal(self, full: BaseException) -> BaseException:
        """What to raise where there is no room: the error itself, for who called the module."""
        if self._outside is None:
            return full
        path = next((call.path for call in self._calls if call.path), "a part")
        budget = self.group.budget_bytes
        refused = OutOfMemory(
            f"cannot run {path} of {self.name} inside of "
            f"{format_bytes(self.carrier.total_bytes() if budget is None else budget)}",
            expected="room for its weights and what it computes",
            hint="a larger budget, smaller pictures, or fewer of them at once",
        )
        refused.__cause__ = full
        return refused

    def note_values(self, is_shape: bool) -> None:
        """What follows may depend on values."""
        self._reads_values = True
        if is_shape and self._signature is not None:
            self._varying.add(self._signature)

    def note_repeat(self, name: str) -> None:
        """An operation that found the device full runs once more."""
        self.repeated_ops += 1
        self.journal.note("evict", self.name, 0, f"the device was full: {name} was repeated")

    def _bring_aside(self, call: Call, weights: Sequence[int]) -> None:
        """Weights in memory of their own, until the layer ends."""
        absent = [self._stretches[w] for w in weights if self._stretches[w].bound is None]
        if not absent:
            return
        self._sample()
        for stretch in absent:
            try:
                memory = self._with_room(
                    functools.partial(self.carrier.empty, aligned(stretch.raw_bytes))
                )
            except OutOfMemory as exc:
                raise self.refusal(exc) from None
            now = self.carrier.mark()
            with self.journal.labelled(stretch.name):
                mark = self._send(stretch, memory, now)
            self.journal.waits(stretch.name, mark, "loaded on demand")
            call.aside.append(stretch)
            self._loose[(stretch.index,)] = memory
            stretch.bind(memory[: stretch.raw_bytes])
            self._holders[(stretch.index,)] = _count_holders(memory)
        self.journal.note("demand", call.path or self.name, sum(s.raw_bytes for s in absent))

    def _send(self, stretch: Stretch, memory: torch.Tensor, now: Any) -> Any:
        target = memory[: stretch.raw_bytes]
        if stretch.layout is None:
            return self.carrier.copy([(target, stretch.host)], [now])
        try:
            payload = self.carrier.empty(stretch.payload_bytes)
        except (torch.OutOfMemoryError, OutOfMemory):  # the host unpacks it, which takes longer
            self._seen_failures += 1
            with unwatched():
                raw = stretch.raw()
            return self.carrier.copy([(target, raw)], [now])
        self.carrier.wait(self.carrier.copy([(payload, stretch.host)], [now]))
        return self.carrier.decode([(payload, stretch.layout, target)])

    # ---- memory that is short

    def _with_room(self, take: Callable[[], T], used: Sequence[torch.Tensor] = ()) -> T:
        """What `take` gives, with as much room made as it needs. Raises OutOfMemory."""
        while True:
            try:
                return take()
            except (torch.OutOfMemoryError, OutOfMemory):
                if not self.make_room(used):
                    raise

    def make_room(self, used: Sequence[torch.Tensor]) -> bool:
        """Free some device memory, not that of `used`; False if there is none to free."""
        self._seen_failures += 1
        self._sample()
        with self._touch_weights():
            found = self.group.make_room(self, used)
        self.carrier.others_peak_bytes(reset=True)  # what left was no computing
        return found

    def make_room_ahead(self, used: Sequence[torch.Tensor], key: Hashable) -> None:
        """Have as much free memory as a library wants for this operation. Raises OutOfBudget.

        Without it the library takes another algorithm, with other bits, and torch keeps that one
        for as long as the process lives. How much it wants is known once it was seen.
        """
        most = self.carrier.workspace_bytes()
        if not most:
            return
        known = _taken.setdefault(self.carrier, {}).get(key)
        wanted = known or (min(most, 16 * sum(x.numel() * x.element_size() for x in used)),)
        if not known:
            self._sample()
        with self._touch_weights():
            while not self.carrier.has_room(wanted):
                if self.make_room(used):
                    continue
                if known:
                    raise self._no_workspace()
                break
        if known:
            self._note_workspace(known)
        else:
            self.carrier.others_peak_bytes(reset=True)  # to try is no computing
            self._before_op = (self.carrier.others_bytes(), self.carrier.failures())

    def note_workspace(self, key: Hashable, result: Any) -> None:
        """Keep what the operation took: its result, and what was there beside it."""
        taken = _taken.setdefault(self.carrier, {})
        if key in taken or not self.carrier.workspace_bytes():
            return
        before_bytes, failures = self._before_op
        if self.carrier.failures() > failures:
            raise self._no_workspace()
        took = self.carrier.others_peak_bytes() - before_bytes
        given = sum(x.numel() * x.element_size() for x in tensors_in(result))
        taken[key] = (given, took - given) if took > given else (given,)
        self._note_workspace(taken[key])

    def _note_workspace(self, wanted: tuple[int, ...]) -> None:
        """The layer that is open wants that, in calls of this kind; a result alone is no choice."""
        path = self._calls[-1].path if self._calls else None
        if path is not None and len(wanted) > 1:
            found = self._workspaces.setdefault(path, {})
            found[self._signature] = max(wanted, found.get(self._signature, ()), key=sum)

    def _have_workspace(self, path: str) -> None:
        """The same in a pass whose operations are not watched: for all that the layer will do.

        Weights that stay may be in use by layers that have no hooks now, so the ring makes room.
        """
        wanted = self._workspaces[path].get(self._signature, ())
        if self.carrier.has_room(wanted):
            return
        self._seen_failures += 1
        if self._streamer is not None and self._turns is None:
            self._dissolve()
            self._leave_rings()
            self.carrier.tidy()
        if not self.carrier.has_room(wanted):
            self._seen_failures += 1
            raise self._no_workspace()

    def _no_workspace(self) -> OutOfBudget:
        return OutOfBudget(
            f"cannot run {self.name} with the same bits: a library has no room for its workspace, "
            "and would take another algorithm",
            expected="room for the workspaces of convolutions",
            hint="a larger budget",
        )

    def shed(self, used: Sequence[torch.Tensor]) -> bool:
        """Free memory of weights that no open layer has, nor `used`; False if there is none.

        What leaves comes back when it is used next, so that only a pass can do that in which every
        operation is watched.
        """
        if not self._is_guarded or self._turns is not None:
            return False
        self._sample()
        had = self._streamer is not None
        if had:
            self._dissolve()
        taken = {w for call in self._calls for w in self._own.get(call.path or "", ())}
        taken |= {s.index for call in self._calls for s in call.ring}
        storages = {x.untyped_storage().data_ptr() for x in used if is_plain(x) and not x.is_meta}
        free = [
            key
            for key, memory in self._loose.items()
            if taken.isdisjoint(key)
            and memory.untyped_storage().data_ptr() not in storages
            and not self._is_held(key)
        ]
        # What was used last is needed last, in a pass that is like the one before.
        wanted = sum(self._loose[key].numel() for key in free) // 4
        freed = 0
        for key in reversed(free):
            freed += self._loose[key].numel()
            self._drop(key, "the device was full")
            if freed > wanted:
                break
        if self._leave_rings(used) or freed or had:
            self.carrier.tidy()
            return True
        if not self._tight:
            self._tight = True  # kernels that are loaded get no room of their own
            self.group.tidy(loading=False)
            return True
        return False

    def _is_held(self, key: tuple[int, ...]) -> bool:
        """Whether code of others has views of weights: their memory would not come free."""
        held = self._holders.get(key)
        return held is not None and _count_holders(self._loose[key]) > held

    def _drop(self, key: tuple[int, ...], reason: str) -> None:
        """Weights outside of any plan leave the device."""
        self.carrier.drain()
        memory = self._loose[key]
        for weight in key:
            self._stretches[weight].unbind()
            self._stretches[weight].forget_views()
        del self._loose[key]
        self._holders.pop(key, None)
        self.journal.note("evict", self._stretches[key[0]].name, memory.numel(), reason)

    def _dissolve(self) -> None:
        """Give the plan up in the middle of a pass; what stays goes on staying, until it leaves."""
        assert self._streamer is not None
        using = {s.index for call in self._calls for s in call.ring}
        rings = self._streamer.ring_bytes
        self._loose |= self._streamer.dissolve(using)
        self._lingering_bytes = rings if using else 0
        self._streamer = self._current = self._watch = None
        for call in self._calls:
            call.use = None
        self._sure.clear()
        self.hook_all()

    def _leave_rings(self, used: Sequence[torch.Tensor] = ()) -> bool:
        """Have open layers use memory of their own, so that a ring that was given up is free.

        False if there is none, or views of weights in `used` hold it.
        """
        views = [x for x in used if is_plain(x) and not x.is_meta and id(x) not in self._weight_of]
        held = {x.untyped_storage().data_ptr() for x in views}
        rings = [s.bound for call in self._calls for s in call.ring if s.bound is not None]
        lying = any(x.untyped_storage().data_ptr() in held for x in rings)
        if not self._lingering_bytes or lying:
            return False
        moving = [(call, [s.index for s in call.ring]) for call in self._calls if call.ring]
        for call, _ in moving:
            for stretch in call.ring:
                stretch.unbind()
                stretch.forget_views()
            call.ring = []
        self._lingering_bytes = 0
        self.carrier.tidy()
        for call, weights in moving:
            self._bring_aside(call, weights)
        return True

    def _may_stay(self) -> bool:
        """Whether there is room for a weight to stay after its layer, in a pass without a plan."""
        if self._tracer is None or self._lingering_bytes:
            return False
        most = [x for x in (self.keep_bytes, self.group.weights_bytes) if x is not None]
        if most and self.held_bytes > min(most):
            return False
        others = self.carrier.others_bytes()
        computed = others - self.group.held_bytes
        more = max(self._peak, self._expected_bytes) - computed
        spare = self._largest_bytes + max(0, more) + self.carrier.workspace_bytes()
        return self.group.room_bytes - others >= spare

    def _bytes_of(self, weights: Sequence[int]) -> int:
        return sum(aligned(self._stretches[w].raw_bytes) for w in weights)

    def _end(self, path: str, output: Any = None) -> Any:
        """A layer ends, also by an exception. Returns what to give instead of its output, if so."""
        places = [i for i, call in enumerate(self._calls) if call.path == path]
        if not places:
            return None
        before, self._moving_weights = self._moving_weights, True
        try:
            instead = self._apart(self._calls[places[-1]], output)
            while len(self._calls) > places[-1]:
                self._leave()
        finally:
            self._moving_weights = before
            self._leave_outside()
        return instead

    def _apart(self, call: Call, output: Any) -> Any:
        """A result that lies in a weight is copied, and the weight stays from the next plan on."""
        held = [(s, s.bound.data_ptr()) for s in (*call.ring, *call.aside) if s.bound is not None]
        spans = [(s, begin, begin + s.raw_bytes) for s, begin in held]
        inside: set[int] = set()
        for leaf in tree_leaves(output) if spans else ():
            if isinstance(leaf, torch.Tensor) and is_plain(leaf) and not leaf.is_meta:
                at = leaf.data_ptr()
                found = [s for s, begin, end in spans if begin <= at < end]
                self._escaped.update(s.index for s in found)
                if any(stretch in call.ring for stretch in found):
                    inside.add(id(leaf))
        if not inside:
            return None
        return tree_map(
            lambda leaf: self._with_room(leaf.clone, [leaf]) if id(leaf) in inside else leaf, output
        )

    def _leave(self) -> None:
        """The innermost call is over."""
        call = self._calls[-1]
        if call.traced and self._tracer is not None:
            self._sample()
            self._tracer.end()
            call.traced = False
        elif call.aside:
            self._sample()
        for stretch in call.ring:
            stretch.unbind()
        for stretch in call.aside:
            key = (stretch.index,)
            if key not in self._loose:
                continue
            if self._may_stay() or self._is_held(key):
                self.journal.note("keep", stretch.name, stretch.raw_bytes)
            else:
                self.journal.stay(stretch.name, stretch.raw_bytes)
                stretch.unbind()
                stretch.forget_views()
                del self._loose[key]
                self._holders.pop(key, None)
        self._calls.pop()
        if not any(other.ring for other in self._calls):
            self._lingering_bytes = 0
        if self._streamer is None:
            return
        if any(stretch.stays for stretch in call.ring):
            self._streamer.spoiled = True
        if call.use is not None and self._leads:
            self._streamer.end(call.use)

    def _leave_all(self) -> None:
        while self._calls:
            self._leave()

    def _come_to_border(self, path: str) -> None:
        """Let the other calls come as far, before this one needs what they have not used yet."""
        lane, turns = self._lane, self._turns
        use = self._next_use(path)
        if turns is None or use is None or self._borders[use] <= lane.border:
            return
        lane.border = self._borders[use]
        turns.border(lane.number, lane.border)
        self._switch(lane.number)

    @property
    def _leads(self) -> bool:
        """Whether what this call is done with makes room: no other call will come to it."""
        return self._turns is None or self._turns.is_last(self._lane.number)


def _count_holders(memory: torch.Tensor) -> int:
    """How many tensors lie in some memory."""
    return torch._C._storage_Use_Count(memory.untyped_storage()._cdata)
