"""Profiles one pass of a module without its weights: layers, their weights, operations, memory.

Weights are never read, copied or moved. The order is the one that a managed module finds in its
first pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt
from holdfast.residency.predict.dry_run import (
    FunctionWatch,
    LiveBytes,
    OpWatch,
    Repeats,
    TracedOp,
    listen,
)
from holdfast.residency.predict.shadow import digest_modules, find_repeated, on_meta, shadow
from holdfast.residency.predict.shapes import ModuleCall
from holdfast.residency.stream.weights import group_tensors, own_tensors, owners

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class ProfiledStretch:
    """A range of weights that moves as one. `dtype` is None if it has several."""

    name: str
    raw_bytes: int
    dtype: torch.dtype | None
    is_buffer: bool


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One run of a layer: its weights, and the operations until the next layer begins."""

    path: str
    weights: tuple[int, ...]
    ops: tuple[TracedOp, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """One pass. `before` are operations before the first layer; `key` identifies the pass."""

    name: str
    key: str
    stretches: tuple[ProfiledStretch, ...]
    layers: tuple[ProfiledLayer, ...]
    before: tuple[TracedOp, ...]
    staying: frozenset[int]
    activation_bytes: int  # the peak of live results
    input_bytes: int
    replica: nn.Module = field(compare=False, repr=False)
    call: ModuleCall = field(compare=False, repr=False)
    repeated: tuple[tuple[str, str], ...] = field(compare=False, repr=False)  # (path, digest)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(stretch.raw_bytes for stretch in self.stretches)


def profile(
    module: nn.Module,
    call: ModuleCall,
    dtype_of: Callable[[str, torch.Tensor], torch.dtype] | None = None,
) -> Profile:
    """Profile a call, with weights of the dtypes of `dtype_of`. Raises BadInput or Unsupported."""
    replica = shadow(module, on_meta(dtype_of))
    originals, replicas = list(owners(module)), list(owners(replica))
    wholes = [path for path, _, whole in originals if whole]
    found = _find_owned(replicas if dtype_of is not None else originals, wholes)
    known = digest_modules(replica)
    make = on_meta()
    inputs = tree_map_only(torch.Tensor, lambda x: x if x.is_meta else make("", x), call.inputs)
    tape = _Tape(found, [path for path, own in found.own.items() if own])
    weight_of = {
        id(tensor): found.place[full]
        for path, part, whole in replicas
        for name, tensor, _ in own_tensors(part, whole)
        if (full := f"{path}.{name}" if path else name) in found.place
    }
    repeated = tuple((p, d) for p, d in find_repeated(replica, known) if not _is_inside(p, wholes))
    call = ModuleCall(call.entry, inputs, call.size)
    _run(replica, call, tape, weight_of, repeated)
    given = {
        x.untyped_storage()._cdata: x.untyped_storage().nbytes()
        for x in tree_leaves(inputs)
        if isinstance(x, torch.Tensor)
    }
    return Profile(
        name=type(module).__name__,
        key=_key(known[""], call.entry, inputs),
        stretches=tuple(found.stretches),
        layers=tuple(ProfiledLayer(s.path, tuple(s.weights), tuple(s.ops)) for s in tape.seen),
        before=tuple(tape.before),
        staying=frozenset(tape.staying),
        activation_bytes=tape.memory.peak_bytes,
        input_bytes=sum(given.values()),
        replica=replica,
        call=call,
        repeated=repeated,
    )


def _is_inside(path: str, wholes: Sequence[str]) -> bool:
    """Whether a submodule is, or is inside, a compiled one, whose layers cannot be hooked."""
    return any(path == whole or not whole or path.startswith(f"{whole}.") for whole in wholes)


def _run(
    replica: nn.Module,
    call: ModuleCall,
    tape: _Tape,
    weight_of: dict[int, int],
    repeated: Sequence[tuple[str, str]],
) -> None:
    watch = OpWatch(tape.op, tape.memory)
    repeats = Repeats(tape, _META, quietly=watch.silence)
    functions = FunctionWatch(watch, weight_of, tape.use_weight)
    try:
        with listen(replica, tape.layers, repeated, repeats), torch.no_grad(), watch, functions:
            getattr(replica, call.entry)(**call.inputs)
    except HoldfastError:
        raise
    except Exception as exc:  # the code of a network may raise anything
        if is_interrupt(exc):
            raise
        raise _explain_failure(type(replica).__name__, call, exc) from exc


def _explain_failure(name: str, call: ModuleCall, exc: Exception) -> HoldfastError:
    reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    if isinstance(exc, NotImplementedError) or "meta" in reason.lower():
        return Unsupported(
            f"cannot follow {name} without its weights: {reason}",
            expected="a module whose control flow does not depend on values",
            hint="manage it and look at managed.plan after the first pass",
        )
    return BadInput(
        f"cannot call {name}.{call.entry} with {', '.join(call.inputs) or 'no inputs'}: {reason}",
        expected="the keyword arguments of one call",
        hint="residency.fit(module, inputs={…}); tensors may be on meta",
    )


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
    """Stretches, those that each module owns, and the stretch of each tensor."""

    stretches: list[ProfiledStretch]
    own: dict[str, tuple[int, ...]]
    place: dict[str, int]


def _find_owned(parts: Sequence[tuple[str, nn.Module, bool]], wholes: Sequence[str]) -> _Owned:
    """Like `weights.find`, also for tensors without memory; `wholes` are compiled modules."""
    begins: dict[int, int] = {}  # invented addresses by storage
    end = 0

    def address_of(_: str, tensor: torch.Tensor) -> int:
        nonlocal end
        storage = tensor.untyped_storage()
        if storage._cdata not in begins:
            begins[storage._cdata] = end
            end += storage.nbytes() + 1
        return begins[storage._cdata] + int(tensor.storage_offset()) * tensor.element_size()

    # What is inside a compiled module belongs to that.
    outer = [
        (path, part, path in wholes)
        for path, part, _ in parts
        if not _is_inside(path, [whole for whole in wholes if whole != path])
    ]
    stretches, own, place = group_tensors(outer, address_of)
    profiled = []
    for stretch in stretches:
        kinds = {member.dtype for member in stretch.members}
        dtype = kinds.pop() if len(kinds) == 1 else None
        about = (stretch.name, stretch.raw_bytes, dtype, stretch.mutable)
        profiled.append(ProfiledStretch(*about))
    return _Owned(profiled, own, place)


# ---- the pass


@dataclass(eq=False, slots=True)
class _Seen:
    path: str
    weights: dict[int, None]
    ops: Any = field(default_factory=list)  # of TracedOp; shared by identical layers
    contains: bool = False

    def copy(self) -> _Seen:
        """A copy of the current state: the last layer of a submodule continues after its end."""
        return _Seen(self.path, dict(self.weights), tuple(self.ops), self.contains)


@dataclass(frozen=True, slots=True)
class _Segment:
    """The recording of a submodule: operations before its first layer, its layers, its peak."""

    path: str
    before: tuple[TracedOp, ...]
    seen: tuple[_Seen, ...]
    rise_bytes: int
    loose: frozenset[int]  # weights used outside any layer


class _Tape:
    """Records a pass like trace.Tracer."""

    def __init__(self, found: _Owned, layers: Sequence[str]) -> None:
        self.layers = layers
        self.memory = LiveBytes()
        self.seen: list[_Seen] = []
        self.before: list[TracedOp] = []
        self._staying: set[int] = set()
        self._open: list[_Seen] = []
        self._found = found
        self._names = {index: full for full, index in reversed(found.place.items())}

    @property
    def staying(self) -> set[int]:
        """Weights that cannot be streamed: of layers with layers inside, and outside any layer."""
        return self._staying | {w for seen in self.seen if seen.contains for w in seen.weights}

    def begin(self, path: str) -> None:
        for outer in self._open:
            outer.contains = True
        seen = _Seen(path, dict.fromkeys(self._found.own[path]))
        self.seen.append(seen)
        self._open.append(seen)

    def end(self, path: str) -> None:
        self._open.pop()

    def op(self, op: TracedOp) -> None:
        """Record an operation; it belongs to the layer that began last."""
        (self.seen[-1].ops if self.seen else self.before).append(op)

    def use_weight(self, weight: int) -> None:
        if any(weight in seen.weights for seen in self._open) or weight in self._staying:
            return
        if self._open:
            self._open[-1].weights[weight] = None
        else:
            self._staying.add(weight)

    # ---- repeated submodules

    def enter_repeat(self) -> Any:
        sink = self.seen[-1].ops if self.seen else self.before
        peak, self.memory.peak_bytes = self.memory.peak_bytes, self.memory.live_bytes
        live = self.memory.live_bytes
        return len(self.seen), sink, len(sink), peak, live, set(self._staying)

    def leave_repeat(self, path: str, entered: Any) -> _Segment:
        count, sink, begun, peak, live, staying = entered
        rise = self.memory.peak_bytes - live
        self.memory.peak_bytes = max(peak, self.memory.peak_bytes)
        seen = tuple(one.copy() for one in self.seen[count:])
        before = tuple(sink[begun:])
        return _Segment(path, before, seen, rise, frozenset(self._staying - staying))

    def should_run(self, times: int, segment: _Segment) -> bool:
        return False

    def replay(self, path: str, segment: _Segment) -> None:
        sink = self.seen[-1].ops if self.seen else self.before
        sink += segment.before
        for seen in segment.seen:
            here = path + seen.path.removeprefix(segment.path)
            weights = dict.fromkeys(self._map_weight(w, segment.path, path) for w in seen.weights)
            self.seen.append(_Seen(here, weights, seen.ops, seen.contains))
        if segment.seen:
            for outer in self._open:
                outer.contains = True
            # The list of later operations must not be shared.
            self.seen[-1].ops = list(self.seen[-1].ops)
        self._staying |= {self._map_weight(w, segment.path, path) for w in segment.loose}
        self.memory.rise(segment.rise_bytes)

    def resume(self) -> None:
        """Do nothing: memory counts itself."""

    def _map_weight(self, weight: int, old: str, new: str) -> int:
        name = self._names[weight]
        if not name.startswith(f"{old}."):
            return weight
        return self._found.place[new + name.removeprefix(old)]
