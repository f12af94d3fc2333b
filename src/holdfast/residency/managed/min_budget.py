"""The smallest budget for a call that did not fit, found by running it on meta tensors.

It follows a pass in which each layer brings its own weights, and adds up activations and weights at
each moment. The module, its state and the arguments are not changed.
"""

from __future__ import annotations

import copy
import inspect
import logging
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.base.interrupts import is_interrupt
from holdfast.residency.managed.weight_set import WeightSet
from holdfast.residency.predict.dry_run import LiveBytes, tensors_in
from holdfast.residency.predict.shadow import shadow
from holdfast.residency.stream.slabs import unwatched
from holdfast.residency.stream.weights import own_tensors, owners

_DEPTH = 20  # of nested objects in the arguments of a call


def find_min_budget(
    module: nn.Module,
    entries: Sequence[str],
    weights: WeightSet,
    beside_bytes: int,
    entry: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> int | None:
    """The smallest budget under which the call runs; None if values decide what it does.

    `entries` are methods that management replaced, `beside_bytes` what others hold on the device.
    """
    with _quiet_and_random(), _as_it_was(module, entries):
        needed = _follow(module, weights, entry, args, kwargs)
    if needed is None:
        return None
    carrier = weights.carrier
    return carrier.budget_around(needed + beside_bytes + carrier.outside_bytes())


@contextmanager
def _quiet_and_random() -> Iterator[None]:
    """Restore random states, and suppress errors of the module's code."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        log.setLevel(level)


def _follow(
    module: nn.Module,
    weights: WeightSet,
    entry: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> int | None:
    """Peak of activations plus weights; None if the call cannot run on meta tensors."""
    state = random.getstate()
    for some, named in _ways_to_call(getattr(module, entry), args, kwargs):
        try:
            return _Following(module, weights).run(entry, some, named)
        except Exception as exc:  # the network's code may raise anything
            if is_interrupt(exc):
                raise
        finally:
            random.setstate(state)
    return None


def _ways_to_call(
    call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Sequence[Any], Mapping[str, Any]]]:
    """The arguments, then the same without masks: libraries read values of masks."""
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
    """One pass of a copy of the module on meta tensors."""

    def __init__(self, module: nn.Module, weights: WeightSet) -> None:
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._device = weights.carrier.device
        self._sizes, self._own, self._strides = weights.sizes(), weights.own, weights.strides()
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
                weight = weights.index_of.get(id(tensor))
                if weight is not None:
                    self.weight_of[id(twin)] = weight
        self.weight_in = {
            twin.untyped_storage()._cdata: self.weight_of[id(twin)]
            for _, part, whole in owners(self._double)
            for _, twin, _ in own_tensors(part, whole)
            if id(twin) in self.weight_of
        }
        self.viewed: Counter[int] = Counter()  # weights that tensors of the pass are views of
        self._open: list[str] = []
        self.live = LiveBytes()
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
        there = {weight for path in self._open for weight in self._own[path]}
        there |= {*used, *(weight for weight, times in self.viewed.items() if times > 0)}
        now = self.live.live_bytes + sum(self._sizes[weight] for weight in there)
        self.needed_bytes = max(self.needed_bytes, now)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._fake:
            return _empty_like(tensor, self._device, self._strides.get(id(tensor)))

    def _copy(self, value: Any) -> Any:
        return _copy_with(value, self._copies, self._like)


class _Count(TorchDispatchMode):
    """Counts every storage that an operation creates until it is freed, and the weights used."""

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
        inputs = tensors_in(args, kwargs)
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
    """A copy of a call's arguments, which it may change, with meta tensors; None if impossible."""

    def make(tensor: torch.Tensor) -> torch.Tensor:
        with unwatched():
            return _empty_like(tensor, torch.device("meta"))

    try:
        return _copy_with((args, kwargs), {}, make)
    except Exception as exc:  # user objects may raise anything when copied
        if is_interrupt(exc):
            raise
        return None


def _empty_like(
    tensor: torch.Tensor, device: torch.device, stride: tuple[int, ...] | None = None
) -> torch.Tensor:
    stride = tuple(tensor.stride()) if stride is None else stride
    return torch.empty_strided(tuple(tensor.shape), stride, dtype=tensor.dtype, device=device)


def _copy_with(
    value: Any, copies: dict[int, Any], make: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """A deep copy with `make(tensor)` for each tensor that is not among `copies`, by id."""
    for one in _tensors_inside(value, set(), _DEPTH):
        if isinstance(one, torch.Generator):
            copies[id(one)] = torch.Generator()
        elif id(one) not in copies:
            copies[id(one)] = make(one)
    return copy.deepcopy(value, copies)


def _tensors_inside(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
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
