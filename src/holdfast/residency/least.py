"""The smallest budget for a call that did not fit, found without its weights.

Covers: following the call on tensors without memory, what is computed and which weights are there
at each moment of a pass in which each layer brings its own.
Leaves to others: doubles of modules (shadow), what such a pass keeps (layers).
Promise: the module, its state and the arguments of the call are left as they are.
"""

from __future__ import annotations

import copy
import inspect
import logging
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.base.interrupts import is_interrupt
from holdfast.residency.guard import tensors_in
from holdfast.residency.prediction.shadow import shadow
from holdfast.residency.prediction.tape import Memory
from holdfast.residency.slabs import unwatched
from holdfast.residency.weights import own_tensors, owners

if TYPE_CHECKING:
    from holdfast.residency.passes import Passes

_DEPTH = 20  # of objects inside of objects in the arguments of a call


def least_budget_bytes(
    managed: Passes, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """The smallest budget under which the call runs; None where values decide what it does."""
    needed = _follow(managed, entry, args, kwargs)
    if needed is None:
        return None
    group = managed.group
    inside = sum(m.held_bytes for m in group.members if m is not managed and m.running)
    beside = needed + managed.begun_bytes + inside
    budget, wanted = 0, beside + managed.carrier.outside_bytes()
    while budget != wanted:  # rounding takes more of a larger budget
        budget = wanted
        wanted = beside + managed.carrier.outside_bytes() + managed.carrier.slack_bytes(budget)
    return budget


def _follow(
    managed: Passes, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """The most that is computed and brought at once; None if that cannot be followed."""
    state = random.getstate()
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)  # errors of the module's code are none of the user's concern
    try:
        return _follow_some_way(managed, entry, args, kwargs, state)
    finally:
        log.setLevel(level)


def _follow_some_way(
    managed: Passes, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any], state: Any
) -> int | None:
    with _as_it_was(managed.module, managed.entries), torch.random.fork_rng(devices=[]):
        for some, named in _ways_to_call(getattr(managed.module, entry), args, kwargs):
            try:
                return _Following(managed).run(entry, some, named)
            except Exception as exc:  # whatever the code of a network stumbles over
                if is_interrupt(exc):
                    raise
            finally:
                random.setstate(state)
    return None


def _ways_to_call(
    call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Sequence[Any], Mapping[str, Any]]]:
    """The arguments, then without masks: libraries look into those, and compute the same."""
    yield args, kwargs
    try:
        bound = inspect.signature(call).bind(*args, **kwargs)
    except TypeError:
        return
    masks = [name for name in bound.arguments if "mask" in name]
    for name in masks:
        del bound.arguments[name]
    if masks:
        yield (), bound.kwargs | bound.arguments


class _Following:
    """One pass of a module's double."""

    def __init__(self, managed: Passes) -> None:
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._device = managed.carrier.device
        self._sizes, self._own = managed.sizes_and_owners()
        self._strides = managed.strides()
        module = managed.module
        with self._fake:
            self._double = shadow(module, lambda _, tensor: self._like(tensor))
        self._copies: dict[int, Any] = {}
        for part in self._double.modules():
            for name, value in list(part.__dict__.items()):
                if isinstance(value, list | dict | set) and not name.startswith("_"):
                    part.__dict__[name] = self._copy(value)
        self.weight_of: dict[int, int] = {}
        for (_, old, whole), (_, new, _) in zip(owners(module), owners(self._double), strict=True):
            pairs = zip(own_tensors(old, whole), own_tensors(new, whole), strict=True)
            for (_, tensor, _), (_, twin, _) in pairs:
                weight = managed.weight_of(tensor)
                if weight is not None:
                    self.weight_of[id(twin)] = weight
        self.weight_in = {
            twin.untyped_storage()._cdata: self.weight_of[id(twin)]
            for _, part, whole in owners(self._double)
            for _, twin, _ in own_tensors(part, whole)
            if id(twin) in self.weight_of
        }
        self.viewed: Counter[int] = Counter()  # weights that tensors of the pass lie in
        self._open: list[str] = []
        self.live = Memory()
        self.needed_bytes = 0

    def run(self, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        args, kwargs = self._copy((args, dict(kwargs)))
        self._hook()
        with torch.no_grad(), self._fake, _Count(self):
            if self._own.get(""):
                self._begin("")
            getattr(self._double, entry)(*args, **kwargs)
        return self.needed_bytes

    def _hook(self) -> None:
        for path, own in self._own.items():
            if path and own:
                part = self._double.get_submodule(path)
                part.register_forward_pre_hook(lambda *_, path=path: self._begin(path))
                part.register_forward_hook(lambda *_: self._end(), always_call=True)

    def _begin(self, path: str) -> None:
        self._open.append(path)
        self.note()

    def _end(self) -> None:
        self._open.pop()

    def note(self, used: Sequence[int] = ()) -> None:
        """A moment of the pass, with weights that an operation uses."""
        there = {weight for path in self._open for weight in self._own[path]}
        there |= {*used, *(weight for weight, times in self.viewed.items() if times > 0)}
        now = self.live.live_bytes + sum(self._sizes[weight] for weight in there)
        self.needed_bytes = max(self.needed_bytes, now)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same without memory."""
        stride = self._strides.get(id(tensor), None)
        if stride is None:
            stride = tuple(tensor.stride())
        with self._fake:
            return torch.empty_strided(
                tuple(tensor.shape), stride, dtype=tensor.dtype, device=self._device
            )

    def _copy(self, value: Any) -> Any:
        """A copy of arguments, tensors without memory in place of those they hold."""
        for tensor in _tensors_inside(value, set(), _DEPTH):
            if isinstance(tensor, torch.Generator):
                self._copies[id(tensor)] = torch.Generator()
            elif id(tensor) not in self._copies:
                self._copies[id(tensor)] = self._like(tensor)
        return copy.deepcopy(value, self._copies)


class _Count(TorchDispatchMode):
    """Counts every storage that an operation makes, until it dies, and the weights it uses."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Else torch would never again compile a function that was called here."""
        return True

    def __init__(self, following: _Following) -> None:
        super().__init__()
        self._following = following

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        following = self._following
        inputs = list(tensors_in((args, kwargs)))
        given = {x.untyped_storage()._cdata for x in inputs}
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            weight = following.weight_in.get(storage._cdata)
            if weight is not None and id(tensor) not in following.weight_of:
                following.viewed[weight] += 1
                weakref.finalize(tensor, following.viewed.subtract, (weight,)).atexit = False
            if storage._cdata not in given:
                following.live.count(storage)
        weights = (following.weight_of.get(id(x)) for x in inputs)
        following.note([weight for weight in weights if weight is not None])
        return result


def copy_arguments(args: Any, kwargs: Any) -> Any:
    """The arguments of a call as they are now, tensors without memory; None if they have no copy.

    A call changes lists, dicts and caches that it is given, also one that fails in the middle.
    """
    copies: dict[int, Any] = {}
    for one in _tensors_inside((args, kwargs), set(), _DEPTH):
        if isinstance(one, torch.Generator):
            copies[id(one)] = torch.Generator()
        else:
            with unwatched():
                copies[id(one)] = torch.empty_strided(
                    tuple(one.shape), tuple(one.stride()), dtype=one.dtype, device="meta"
                )
    try:
        return copy.deepcopy((args, kwargs), copies)
    except Exception as exc:  # whatever an object of others does when it is copied
        if is_interrupt(exc):
            raise
        return None


def _tensors_inside(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
    """Tensors and generators, wherever in containers and objects."""
    if isinstance(value, torch.Tensor | torch.Generator):
        yield value
        return
    if id(value) in seen or depth == 0:
        return
    seen.add(id(value))
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set):
        inside = value
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module):
        inside = vars(value).values()
    for one in inside:
        yield from _tensors_inside(one, seen, depth - 1)


@contextmanager
def _as_it_was(module: nn.Module, entries: Sequence[str]) -> Iterator[None]:
    """The module with its own methods: a double would have those that manage the original."""
    hidden = {name: module.__dict__.pop(name) for name in entries if name in module.__dict__}
    try:
        yield
    finally:
        module.__dict__.update(hidden)
