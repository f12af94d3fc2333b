"""The layers of a managed module as they begin and end.

Covers: hooks, weights brought by the plan or aside, layers out of turn, weights that are used
without their layer, results that lie in a weight, LoRAs merged into what stays.
Leaves to others: whole passes (passes).
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.residency import outside
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.lora import merge_into, patched_layers
from holdfast.residency.ring import aligned
from holdfast.residency.state import Call, State
from holdfast.residency.weights import Stretch, is_plain, owners


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

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._hooked_itself = False

    def _begin(self, path: str) -> None:
        throw_exception_if_processing_interrupted()
        if self._turns is not None:
            self._come_to_border(path)
        call = Call(path)
        self._calls.append(call)  # first of all, so that its end finds it whatever happens
        # What is done to weights here is no use of them.
        before, self._moving_weights = self._moving_weights, True
        try:
            if self._tracer is not None:
                self._begin_traced(call, self._own[path])
                return
            use = self._place_of(path)
            if use is None or not self._stream(call, use):
                self._astray += 1
                self._bring_aside(call, self._needs.get(path, self._own[path]))
        finally:
            self._moving_weights = before

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
        if self._streamer is None or self._entered is None:
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

    def _found(self, weight: int) -> None:
        """An operation of torch got a weight; bring it if its layer was not called."""
        if self._stretches[weight].bound is not None or self._moving_weights:
            return
        if self._tracer is not None:
            self._tracer.taken(weight)
        else:
            self._astray += 1
        if not self._calls:
            self._calls.append(Call(None))
        self._bring_aside(self._calls[-1], (weight,))

    def _bring_aside(self, call: Call, weights: Sequence[int]) -> None:
        """Weights in memory of their own, until the layer ends."""
        absent = [self._stretches[w] for w in weights if self._stretches[w].bound is None]
        if not absent:
            return
        if self._tracer is not None:
            self._sample()
        for stretch in absent:
            memory = self.carrier.empty(aligned(stretch.raw_bytes))
            now = self.carrier.mark()
            with self.journal.labelled(stretch.name):
                mark = self._send(stretch, memory, now)
            self.journal.waits(stretch.name, mark, "loaded on demand")
            call.aside.append(stretch)
            stretch.bind(memory[: stretch.raw_bytes])
        self.journal.note("demand", call.path or self.name, sum(s.raw_bytes for s in absent))

    def _send(self, stretch: Stretch, memory: torch.Tensor, now: Any) -> Any:
        if stretch.layout is None:
            return self.carrier.copy([(memory[: stretch.raw_bytes], stretch.host)], [now])
        payload = self.carrier.empty(stretch.payload_bytes)
        self.carrier.wait(self.carrier.copy([(payload, stretch.host)], [now]))
        return self.carrier.decode([(payload, stretch.layout, memory[: stretch.raw_bytes])])

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
        return tree_map(lambda leaf: leaf.clone() if id(leaf) in inside else leaf, output)

    def _leave(self) -> None:
        """The innermost call is over."""
        call = self._calls[-1]
        if call.traced and self._tracer is not None:
            self._sample()
            self._tracer.end()
            call.traced = False
        for stretch in (*call.ring, *call.aside):
            stretch.unbind()
        for stretch in call.aside:
            stretch.forget_views()
            self.journal.stay(stretch.name, stretch.raw_bytes)
        self._calls.pop()
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
