"""Runs a copy of a module and records its layers, operations and memory.

Identical submodules called with identical shapes run once, and the recording is repeated for the
others. The result is the same as without this shortcut if a submodule depends only on its class,
configuration and input shapes; a submodule that writes into its arguments always runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
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
class TracedOp:
    """One operation: its name, the shapes and dtypes of its inputs and outputs."""

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    fresh: bool  # whether it allocates an output

    @property
    def moved_bytes(self) -> int:
        """The bytes it reads and writes."""
        return sum(_count(spec) * spec[1].itemsize for spec in (*self.inputs, *self.outputs))

    @property
    def flops(self) -> float:
        """Operations of matrix products, convolutions and attention; 0 for others."""
        if not self.outputs:
            return 0.0
        outputs = self.output_elements
        if self.name in _MATRICES:
            return 2.0 * outputs * self.inputs[-2][0][-1]
        if "convolution" in self.name:
            return 2.0 * outputs * _count(self.inputs[1]) / self.inputs[1][0][0]
        if self.name == ATTENTION:
            query, key = self.inputs[0][0], self.inputs[1][0]
            scores = 2.0 * _count(self.inputs[0]) / query[-1] * (query[-1] * key[-2])
            return 2.0 * outputs * key[-2] + scores
        return 0.0

    @property
    def output_elements(self) -> int:
        """The number of elements of its first output."""
        return _count(self.outputs[0]) if self.outputs else 0


def _count(spec: Spec) -> int:
    return math.prod(spec[0])


class RunListener(Protocol):
    """Receives the events of a run.

    Layers with weights `begin` and `end`. A repeated submodule runs between `enter_repeat` and
    `leave_repeat`, which gets the result of the former; or, unless it `should_run` again after so
    many times, `replay` gets what `leave_repeat` returned for an identical one. `resume` follows
    once its outputs exist, and its caller continues.
    """

    def begin(self, path: str) -> None: ...
    def end(self, path: str) -> None: ...
    def enter_repeat(self) -> Any: ...
    def leave_repeat(self, path: str, entered: Any) -> Any: ...
    def should_run(self, times: int, segment: Any) -> bool: ...
    def replay(self, path: str, segment: Any) -> None: ...
    def resume(self) -> None: ...


@dataclass(slots=True)
class _Known:
    """The recording of a submodule for inputs of some shapes."""

    times: int
    segment: Any
    outputs: list[Any]
    spec: TreeSpec | None


@dataclass(frozen=True, slots=True)
class _Made:
    """An output: the index of its new storage (`fresh`), or of the input it is a view of."""

    fresh: int | None
    given: int | None
    nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(eq=False)
class Repeats:
    """Runs one of several identical submodules and replays it for the others."""

    listener: RunListener
    device: torch.device
    fill: bool = False  # whether outputs of replayed submodules get values
    quietly: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    _known: dict[Any, _Known] = field(default_factory=dict)
    _unlike: set[str] = field(default_factory=set)

    def call(
        self, path: str, digest: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Stands in for the `forward` of a submodule."""
        given, spec = tree_flatten((args, kwargs))
        key = None if digest in self._unlike else _key(digest, given, spec)
        known = self._known.get(key)
        if known is not None and not self.listener.should_run(known.times, known.segment):
            self.listener.replay(path, known.segment)
            with self.quietly():
                outputs = self._outputs(known, given)
            self.listener.resume()
            return outputs
        entered = self.listener.enter_repeat()
        result = forward(*args, **kwargs)
        segment = self.listener.leave_repeat(path, entered)
        after, _ = tree_flatten((args, kwargs))
        if len(after) != len(given) or any(a is not b for a, b in zip(after, given, strict=True)):
            self._unlike.add(digest)  # it writes into its arguments
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
                    count = made.nbytes // made.dtype.itemsize
                    new = torch.empty(count, dtype=made.dtype, device=self.device)
                    filled = self.fill and made.dtype.is_floating_point
                    storages[made.fresh] = new.normal_() if filled else new
                base = storages[made.fresh]
            results.append(torch.as_strided(base, made.shape, made.stride, made.offset))
        assert known.spec is not None
        return tree_unflatten(results, known.spec)


def _key(digest: str, given: Sequence[Any], spec: TreeSpec) -> Any:
    """A key of all that a submodule's run depends on; None if an input is not comparable."""
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
def listen(
    replica: nn.Module, layers: Sequence[str], repeated: Sequence[tuple[str, str]], repeats: Repeats
) -> Iterator[None]:
    """Report the layers of a copy to the listener; `repeated` are its repeated submodules."""
    listener = repeats.listener
    parts = dict(replica.named_modules())
    hooks: list[Any] = []
    before = [parts[path].__dict__.get("forward") for path, _ in repeated]
    for path in filter(None, layers):
        part = parts[path]
        hooks.append(part.register_forward_pre_hook(_pass_path(listener.begin, path)))
        hooks.append(part.register_forward_hook(_pass_path(listener.end, path), always_call=True))
    for path, digest in repeated:
        part = parts[path]
        part.__dict__["forward"] = functools.partial(repeats.call, path, digest, part.forward)
    try:
        if "" in layers:  # its method is called directly, which skips hooks
            listener.begin("")
        yield
        if "" in layers:
            listener.end("")
    finally:
        for hook in hooks:
            hook.remove()
        for (path, _), forward in zip(repeated, before, strict=True):
            parts[path].__dict__.pop("forward", None)
            if forward is not None:
                parts[path].__dict__["forward"] = forward


def _pass_path(call: Callable[[str], None], path: str) -> Callable[..., None]:
    return lambda *_: call(path)


# ---- operations and memory


class LiveBytes:
    """Bytes of live results, now and at the peak."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a new storage until it is freed."""
        key, nbytes = storage._cdata, storage.nbytes()
        if nbytes == 0 or key in self._known:
            return
        self._known.add(key)
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._note_gone, key, nbytes).atexit = False

    def _note_gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.live_bytes -= nbytes

    def rise(self, nbytes: int) -> None:
        """Count temporary memory."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + nbytes)


class OpWatch(TorchDispatchMode):
    """Records operations and the memory of their results."""

    def __init__(self, note: Callable[[TracedOp], None], memory: LiveBytes) -> None:
        super().__init__()
        self._note, self._memory = note, memory
        self._ops: dict[Any, TracedOp] = {}
        self.quiet = 0  # above 0, memory is counted but no operation recorded

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
        """Record one operation."""
        key = (name, tuple(map(_spec, inputs)), tuple(map(_spec, outputs)), fresh)
        if key not in self._ops:
            self._ops[key] = TracedOp(*key)
        self._note(self._ops[key])

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Record no operations inside."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors in trees, in torch's order; much faster than torch's walk for the usual few."""
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


class FunctionWatch(TorchFunctionMode):
    """Reports the weights that torch functions get; replaces attention, not fused on meta."""

    def __init__(self, watch: OpWatch, weight_of: dict[int, int], taken: Callable[[int], None]):
        super().__init__()
        self._watch, self._weight_of, self._taken = watch, weight_of, taken

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in ("__get__", "__set__"):  # reading a shape is not a use
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
