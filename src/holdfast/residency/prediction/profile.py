"""What one pass of a module does, found without its weights.

Covers: its weights as stretches of bytes, which layer uses which in what order, the operations of
each, the memory of what is computed.
Leaves to others: running the double (tape), what it costs (rates, fit).
Promise: weights are never read, copied or moved; the order is that which a managed module finds in
its first pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.residency.prediction.shadow import digests, on_meta, repeated, shadow
from holdfast.residency.prediction.shapes import Call
from holdfast.residency.prediction.tape import Functions, Memory, Op, Repeats, Watch, listening
from holdfast.residency.weights import Member, _stretches, is_plain, own_tensors, owners

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of weights that moves as one. `dtype` is None where formats are mixed."""

    name: str
    raw_bytes: int
    dtype: torch.dtype | None
    is_buffer: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """One run of a layer: its weights, and the operations until the next layer begins."""

    path: str
    weights: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """One pass. `before` are operations before the first layer; `key` is what was profiled."""

    name: str
    key: str
    parts: tuple[Part, ...]
    layers: tuple[Layer, ...]
    before: tuple[Op, ...]
    staying: frozenset[int]
    activation_bytes: int  # the most that is computed and alive at once
    input_bytes: int
    double: nn.Module = field(compare=False, repr=False)
    call: Call = field(compare=False, repr=False)
    alike: tuple[tuple[str, str], ...] = field(compare=False, repr=False)  # (path, digest)

    @property
    def weight_bytes(self) -> int:
        """All weights."""
        return sum(part.raw_bytes for part in self.parts)


def profile(
    module: nn.Module,
    call: Call,
    dtype_of: Callable[[str, torch.Tensor], torch.dtype] | None = None,
) -> Profile:
    """What `call` does with a module, with weights in the formats that `dtype_of` says.

    Raises BadInput with torch's reason if the call fails, Unsupported if it depends on values.
    """
    double = shadow(module, on_meta(dtype_of))
    originals, doubles = list(owners(module)), list(owners(double))
    wholes = [path for path, _, whole in originals if whole]
    found = _owned(doubles if dtype_of is not None else originals, wholes)
    known = digests(double)
    inputs = _on_meta(call.inputs)
    tape = _Tape(found, [path for path, own in found.own.items() if own])
    weight_of = {
        id(tensor): found.place[full]
        for path, part, whole in doubles
        for name, tensor, _ in own_tensors(part, whole)
        if (full := f"{path}.{name}" if path else name) in found.place
    }
    alike = tuple((p, d) for p, d in repeated(double, known) if not _is_inside(p, wholes))
    _run(double, Call(call.entry, inputs, call.size), tape, weight_of, alike)
    given = {
        x.untyped_storage()._cdata: x.untyped_storage().nbytes()
        for x in tree_leaves(inputs)
        if isinstance(x, torch.Tensor)
    }
    return Profile(
        name=type(module).__name__,
        key=_key(known[""], call.entry, inputs),
        parts=tuple(found.parts),
        layers=tuple(Layer(s.path, tuple(s.weights), tuple(s.ops)) for s in tape.seen),
        before=tuple(tape.before),
        staying=frozenset(tape.staying),
        activation_bytes=tape.memory.peak_bytes,
        input_bytes=sum(given.values()),
        double=double,
        call=Call(call.entry, inputs, call.size),
        alike=alike,
    )


def _is_inside(path: str, wholes: Sequence[str]) -> bool:
    """Whether a part is, or is inside of, one that a compiler runs: nobody sees its layers."""
    return any(path == whole or not whole or path.startswith(f"{whole}.") for whole in wholes)


def _run(
    double: nn.Module,
    call: Call,
    tape: _Tape,
    weight_of: dict[int, int],
    alike: Sequence[tuple[str, str]],
) -> None:
    watch = Watch(tape.op, tape.memory)
    repeats = Repeats(tape, _META, quietly=watch.silence)
    functions = Functions(watch, weight_of, tape.taken)
    try:
        with listening(double, tape.layers, alike, repeats), torch.no_grad(), watch, functions:
            getattr(double, call.entry)(**call.inputs)
    except HoldfastError:
        raise
    except Exception as exc:  # whatever the code of a network stumbles over
        if is_interrupt(exc):
            raise
        raise _failed(type(double).__name__, call, exc) from exc


def _failed(name: str, call: Call, exc: Exception) -> HoldfastError:
    reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    if isinstance(exc, NotImplementedError) or "meta" in reason.lower():
        return Unsupported(
            f"cannot follow {name} without its weights: {reason}",
            expected="a module whose way does not depend on values",
            hint="manage it and look at managed.plan after the first pass",
        )
    return BadInput(
        f"cannot call {name}.{call.entry} with {', '.join(call.inputs) or 'no inputs'}: {reason}",
        expected="the keyword arguments of one call",
        hint="residency.fit(module, inputs={…}), tensors on meta will do",
    )


def _on_meta(inputs: Any) -> Any:
    if isinstance(inputs, torch.Tensor):
        if inputs.is_meta:
            return inputs
        stride = tuple(inputs.stride())
        return torch.empty_strided(tuple(inputs.shape), stride, dtype=inputs.dtype, device=_META)
    if isinstance(inputs, dict):
        return {name: _on_meta(value) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(_on_meta(value) for value in inputs)
    return inputs


def _key(digest: str, entry: str, inputs: Any) -> str:
    shapes = [
        (tuple(x.shape), str(x.dtype)) if isinstance(x, torch.Tensor) else repr(x)
        for x in tree_leaves(inputs)
    ]
    text = repr((digest, entry, sorted(inputs), shapes))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ---- weights


@dataclass(frozen=True, slots=True)
class _Owned:
    """Stretches, which of them each owner has by itself, and where each tensor is."""

    parts: list[Part]
    own: dict[str, tuple[int, ...]]
    place: dict[str, int]


def _owned(parts: Sequence[tuple[str, nn.Module, bool]], wholes: Sequence[str]) -> _Owned:
    """As `weights.find`, also for tensors that have no address; `wholes` are compiled."""
    members: dict[int, Member] = {}
    of: dict[str, list[int]] = {}
    keys: dict[str, int] = {}
    places: dict[int, int] = {}  # storage -> an address of its own
    end = 0
    for path, part, _ in parts:
        if any(path.startswith(f"{whole}.") or not whole for whole in wholes if whole != path):
            continue  # counts as its compiled owner's
        for name, tensor, is_buffer in own_tensors(part, path in wholes):
            if not is_plain(tensor) or tensor.numel() == 0:
                continue
            full = f"{path}.{name}" if path else name
            of.setdefault(path, []).append(id(tensor))
            keys[full] = id(tensor)
            storage = tensor.untyped_storage()
            if storage._cdata not in places:
                places[storage._cdata] = end
                end += storage.nbytes() + 1
            if id(tensor) not in members:
                begin = int(tensor.storage_offset()) * tensor.element_size()
                members[id(tensor)] = _member(
                    tensor, full, is_buffer, places[storage._cdata] + begin
                )
    stretches = _stretches(list(members.values()))
    home = {id(m.tensor): s.index for s in stretches for m in s.members}
    return _Owned(
        [_part(s) for s in stretches],
        {path: tuple(dict.fromkeys(home[k] for k in ids)) for path, ids in of.items()},
        {full: home[key] for full, key in keys.items()},
    )


def _member(tensor: torch.Tensor, path: str, is_buffer: bool, address: int) -> Member:
    return Member(
        tensor=tensor,
        path=path,
        offset=address,
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        is_buffer=is_buffer,
        home=_META,
    )


def _part(stretch: Any) -> Part:
    kinds = {member.dtype for member in stretch.members}
    dtype = kinds.pop() if len(kinds) == 1 else None
    return Part(stretch.name, stretch.raw_bytes, dtype, stretch.mutable)


# ---- the pass


@dataclass(eq=False, slots=True)
class _Seen:
    path: str
    weights: dict[int, None]
    ops: Any = field(default_factory=list)  # of Op; shared by layers that are alike
    contains: bool = False

    def copy(self) -> _Seen:
        """As it is now: the last layer of a part goes on when the part is over."""
        return _Seen(self.path, dict(self.weights), tuple(self.ops), self.contains)


@dataclass(frozen=True, slots=True)
class _Segment:
    """What a part did: operations before its first layer, its layers, what it took for a moment."""

    path: str
    before: tuple[Op, ...]
    seen: tuple[_Seen, ...]
    rise_bytes: int
    loose: frozenset[int]  # weights that it took outside of any layer


class _Tape:
    """Notes a pass as trace.Tracer does."""

    def __init__(self, found: _Owned, layers: Sequence[str]) -> None:
        self.layers = layers
        self.memory = Memory()
        self.seen: list[_Seen] = []
        self.before: list[Op] = []
        self._staying: set[int] = set()
        self._open: list[_Seen] = []
        self._found = found
        self._names = {index: full for full, index in reversed(found.place.items())}

    @property
    def staying(self) -> set[int]:
        """Weights that can only stay: those of layers with layers inside, and loose ones."""
        return self._staying | {w for seen in self.seen if seen.contains for w in seen.weights}

    def begin(self, path: str) -> None:
        for outer in self._open:
            outer.contains = True
        seen = _Seen(path, dict.fromkeys(self._found.own[path]))
        self.seen.append(seen)
        self._open.append(seen)

    def end(self, path: str) -> None:
        self._open.pop()

    def op(self, op: Op) -> None:
        """An operation belongs to the layer that began last."""
        (self.seen[-1].ops if self.seen else self.before).append(op)

    def taken(self, weight: int) -> None:
        """A weight went into a function of torch."""
        if any(weight in seen.weights for seen in self._open) or weight in self._staying:
            return
        if self._open:
            self._open[-1].weights[weight] = None
        else:
            self._staying.add(weight)

    # ---- parts that are alike

    def entered(self) -> Any:
        sink = self.seen[-1].ops if self.seen else self.before
        peak, self.memory.peak_bytes = self.memory.peak_bytes, self.memory.live_bytes
        return (
            len(self.seen), sink, len(sink), peak, self.memory.live_bytes, set(self._staying)
        )  # fmt: skip

    def left(self, path: str, entered: Any) -> _Segment:
        count, sink, begun, peak, live, staying = entered
        rise = self.memory.peak_bytes - live
        self.memory.peak_bytes = max(peak, self.memory.peak_bytes)
        seen = tuple(one.copy() for one in self.seen[count:])
        before = tuple(sink[begun:])
        return _Segment(path, before, seen, rise, frozenset(self._staying - staying))

    def wanted(self, times: int, segment: _Segment) -> bool:
        return False

    def again(self, path: str, segment: _Segment) -> None:
        sink = self.seen[-1].ops if self.seen else self.before
        sink += segment.before
        for seen in segment.seen:
            here = path + seen.path.removeprefix(segment.path)
            weights = dict.fromkeys(self._moved(w, segment.path, path) for w in seen.weights)
            self.seen.append(_Seen(here, weights, seen.ops, seen.contains))
        if segment.seen:
            for outer in self._open:
                outer.contains = True
            # What comes next is not part of what is shared.
            self.seen[-1].ops = list(self.seen[-1].ops)
        self._staying |= {self._moved(w, segment.path, path) for w in segment.loose}
        self.memory.rise(segment.rise_bytes)

    def resumed(self) -> None:
        """Nothing to do: memory is counted by itself."""

    def _moved(self, weight: int, old: str, new: str) -> int:
        name = self._names[weight]
        if not name.startswith(f"{old}."):
            return weight
        return self._found.place[new + name.removeprefix(old)]
