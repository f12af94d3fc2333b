"""Run a double of a module and note what happens, parts that are alike only once.

Covers: the calls of layers, repeated parts, the operations of each layer, the memory of what is
computed.
Leaves to others: what follows from it (profile), time on devices (rates).
Promise: what is noted is what would be noted without the shortcut, as far as a part's doings depend
on its kind and the shapes it is called with; a part that changes what it is given is never cut
short.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

Spec = tuple[tuple[int, ...], torch.dtype]

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_LEAVES = frozenset((*_PLAIN, torch.Size, torch.layout, torch.memory_format, type))
_MATRICES = ("mm", "addmm", "bmm", "baddbmm")
ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: its name, the shapes and formats that go in and come out."""

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    fresh: bool  # whether it makes something new

    @property
    def moved_bytes(self) -> int:
        """What it reads and writes."""
        return sum(_bytes(spec) for spec in (*self.inputs, *self.outputs))

    @property
    def products(self) -> float:
        """Two for each product of matrices, convolutions and attention; 0 for anything else."""
        if not self.outputs:
            return 0.0
        made = _count(self.outputs[0])
        if self.name in _MATRICES:
            return 2.0 * made * self.inputs[-2][0][-1]
        if "convolution" in self.name:
            return 2.0 * made * _count(self.inputs[1]) / self.inputs[1][0][0]
        if self.name == ATTENTION:
            query, key = self.inputs[0][0], self.inputs[1][0]
            return 2.0 * made * key[-2] + 2.0 * _count(self.inputs[0]) / query[-1] * (
                query[-1] * key[-2]
            )
        return 0.0

    @property
    def made(self) -> int:
        """How many numbers its first result has."""
        return _count(self.outputs[0]) if self.outputs else 0


def _count(spec: Spec) -> int:
    count = 1
    for side in spec[0]:
        count *= side
    return count


def _bytes(spec: Spec) -> int:
    return _count(spec) * spec[1].itemsize


class Listener(Protocol):
    """Who is told what a double does."""

    def begin(self, path: str) -> None:
        """A layer with weights of its own begins."""
        ...

    def end(self, path: str) -> None:
        """It ends."""
        ...

    def entered(self) -> Any:
        """A part that has its like begins; what is returned comes back in `left`."""
        ...

    def left(self, path: str, entered: Any) -> Any:
        """It ends; what is returned is what `again` gets for its like."""
        ...

    def again(self, path: str, segment: Any) -> None:
        """A part does what its like did."""
        ...

    def resumed(self) -> None:
        """What it would have made is there, and its caller goes on."""
        ...

    def wanted(self, times: int, segment: Any) -> bool:
        """Whether a part that ran so many times shall really run once more."""
        ...


@dataclass(slots=True)
class _Known:
    """What a part of a kind did with inputs of some shapes."""

    times: int
    segment: Any
    outputs: list[Any]
    spec: TreeSpec | None


@dataclass(frozen=True, slots=True)
class _Made:
    """An output: in which storage of the part's own (`fresh`), or over which input."""

    fresh: int | None
    given: int | None
    nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(eq=False)
class Repeats:
    """Runs a part of each kind and lets its like repeat it."""

    listener: Listener
    device: torch.device
    fill: bool = False  # whether outputs that nobody computed get values
    quietly: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    _known: dict[Any, _Known] = field(default_factory=dict)
    _unlike: set[str] = field(default_factory=set)

    def call(
        self, path: str, digest: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """In place of the part's own `forward`."""
        given, spec = tree_flatten((args, kwargs))
        key = None if digest in self._unlike else _key(digest, given, spec)
        known = self._known.get(key)
        if known is not None and not self.listener.wanted(known.times, known.segment):
            self.listener.again(path, known.segment)
            with self.quietly():
                outputs = self._outputs(known, given)
            self.listener.resumed()
            return outputs
        entered = self.listener.entered()
        result = forward(*args, **kwargs)
        segment = self.listener.left(path, entered)
        after, _ = tree_flatten((args, kwargs))
        if len(after) != len(given) or any(a is not b for a, b in zip(after, given, strict=True)):
            self._unlike.add(digest)  # it writes into lists it is given
        elif key is not None:
            made, result_spec = tree_flatten(result)
            times = 0 if known is None else known.times
            self._known[key] = _Known(times + 1, segment, _describe(made, given), result_spec)
        return result

    def _outputs(self, known: _Known, given: Sequence[Any]) -> Any:
        storages: dict[int, torch.Tensor] = {}
        results: list[Any] = []
        for made in known.outputs:
            if not isinstance(made, _Made):
                results.append(made)
                continue
            if made.given is not None:
                base = given[made.given]
            else:
                assert made.fresh is not None
                if made.fresh not in storages:
                    storages[made.fresh] = self._storage(made)
                base = storages[made.fresh]
            results.append(torch.as_strided(base, made.shape, made.stride, made.offset))
        assert known.spec is not None
        return tree_unflatten(results, known.spec)

    def _storage(self, made: _Made) -> torch.Tensor:
        count = made.nbytes // made.dtype.itemsize
        new = torch.empty(count, dtype=made.dtype, device=self.device)
        return new.normal_() if self.fill and made.dtype.is_floating_point else new


def _key(digest: str, given: Sequence[Any], spec: TreeSpec) -> Any:
    """What decides the doings of a part; None if that cannot be told."""
    parts: list[Any] = []
    storages: dict[int, int] = {}
    for leaf in given:
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()._cdata
            place = storages.setdefault(storage, len(storages))
            shape, stride = tuple(leaf.shape), tuple(leaf.stride())
            parts.append((shape, stride, leaf.dtype, leaf.storage_offset(), place))
        elif isinstance(leaf, _PLAIN):
            parts.append((type(leaf), leaf))
        else:
            return None
    return digest, tuple(parts), str(spec)


def _describe(made: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    inputs = {
        leaf.untyped_storage()._cdata: i
        for i, leaf in enumerate(given)
        if isinstance(leaf, torch.Tensor)
    }
    fresh: dict[int, int] = {}
    found: list[Any] = []
    for leaf in made:
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        storage = leaf.untyped_storage()
        over = inputs.get(storage._cdata)
        number = None if over is not None else fresh.setdefault(storage._cdata, len(fresh))
        shape, stride, offset = tuple(leaf.shape), tuple(leaf.stride()), int(leaf.storage_offset())
        found.append(_Made(number, over, storage.nbytes(), shape, stride, offset, leaf.dtype))
    return found


@contextlib.contextmanager
def listening(
    double: nn.Module,
    layers: Sequence[str],
    alike: Sequence[tuple[str, str]],
    repeats: Repeats,
) -> Iterator[None]:
    """Inside, the listener is told of the layers of a double; `alike` are its repeated parts."""
    listener = repeats.listener
    parts = dict(double.named_modules())
    hooks: list[Any] = []
    before = [parts[path].__dict__.get("forward") for path, _ in alike]
    for path in filter(None, layers):
        part = parts[path]
        hooks.append(part.register_forward_pre_hook(_told(listener.begin, path)))
        hooks.append(part.register_forward_hook(_told(listener.end, path), always_call=True))
    for path, digest in alike:
        part = parts[path]
        part.__dict__["forward"] = functools.partial(repeats.call, path, digest, part.forward)
    try:
        if "" in layers:  # hooks of the module itself are for its callers
            listener.begin("")
        yield
        if "" in layers:
            listener.end("")
    finally:
        for hook in hooks:
            hook.remove()
        for (path, _), forward in zip(alike, before, strict=True):
            parts[path].__dict__.pop("forward", None)
            if forward is not None:
                parts[path].__dict__["forward"] = forward


def _told(tell: Callable[[str], None], path: str) -> Callable[..., None]:
    return lambda *_: tell(path)


# ---- what is computed


class Memory:
    """Bytes of what is computed: alive now, and the most of it."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def count(self, storage: torch.UntypedStorage) -> None:
        """A storage that an operation made, until it dies."""
        key, nbytes = storage._cdata, storage.nbytes()
        if nbytes == 0 or key in self._known:
            return
        self._known.add(key)
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._gone, key, nbytes).atexit = False

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live_bytes -= nbytes

    def rise(self, nbytes: int) -> None:
        """Something took that much for a moment."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + nbytes)


class Watch(TorchDispatchMode):
    """Notes operations and the memory of their results."""

    def __init__(self, note: Callable[[Op], None], memory: Memory) -> None:
        super().__init__()
        self._note, self._memory = note, memory
        self._ops: dict[Any, Op] = {}
        self.quiet = 0  # above 0, memory is counted and nothing noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = tensors_in(*args, kwargs)
        outputs = tensors_in(result)
        given = {x.untyped_storage()._cdata for x in inputs}
        fresh = [s for x in outputs if (s := x.untyped_storage())._cdata not in given]
        for storage in fresh:
            self._memory.count(storage)
        if not self.quiet and (fresh or func._schema.is_mutable):
            self.note(func.overloadpacket.__name__, inputs, outputs, bool(fresh))
        return result

    def note(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        fresh: bool,
    ) -> None:
        """One operation."""
        key = (name, tuple(map(_spec, inputs)), tuple(map(_spec, outputs)), fresh)
        if key not in self._ops:
            self._ops[key] = Op(*key)
        self._note(self._ops[key])

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Inside, nothing is noted."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of trees, in torch's order.

    Most trees are a few tensors and numbers, which torch's own walk takes much longer for.
    """
    found: list[torch.Tensor] = []
    for tree in trees:
        kind = type(tree)
        if isinstance(tree, torch.Tensor):
            found.append(tree)
        elif kind is tuple or kind is list:
            found += tensors_in(*tree)
        elif kind is dict:
            found += tensors_in(*tree.values())
        elif kind not in _LEAVES:
            found += [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return found


def _spec(tensor: torch.Tensor) -> Spec:
    return tuple(tensor.shape), tensor.dtype


class Functions(TorchFunctionMode):
    """Tells which tensors functions of torch get, and stands in for fused attention.

    On meta torch would compute attention in its plain way, whose memory no device needs.
    """

    def __init__(self, watch: Watch, weight_of: dict[int, int], taken: Callable[[int], None]):
        super().__init__()
        self._watch, self._weight_of, self._taken = watch, weight_of, taken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in ("__get__", "__set__"):  # looking at a shape is no use
            for tensor in tensors_in(*args, kwargs):
                if id(tensor) in self._weight_of:
                    self._taken(self._weight_of[id(tensor)])
        if name == "scaled_dot_product_attention":
            return self._attention(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _attention(
        self,
        func: Any,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        fused = query.is_meta and query.dim() == 4 and query.shape[-1] == value.shape[-1]
        if not fused:
            return func(query, key, value, attn_mask, *rest, **more)
        batch, heads, tokens, width = *query.shape[:3], value.shape[-1]
        with self._watch.silence():
            result = query.new_empty(batch, tokens, heads, width).transpose(1, 2)
            sums = query.new_empty(batch, heads, tokens, dtype=torch.float32)
        inputs = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        self._watch.note(ATTENTION, inputs, [result, sums], True)
        return result
