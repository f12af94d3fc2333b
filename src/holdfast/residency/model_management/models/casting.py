"""Runs a module whose weights are on another device: copies them for the call, drops them after.

Results are the same bits as with resident weights, and writes to tensors are kept. After an
exception or Ctrl-C in a call the copies stay until the next call or `settle`.

A compiled model runs the hooks it had when it was compiled. torch recompiles when a weight's device
changes, so only patches of a model whose two devices are the same are missed then.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.model_management.models.merging import Patch, merge
from holdfast.residency.model_management.models.offload import cast_to
from holdfast.residency.model_management.models.parts import ModelPart, table_of
from holdfast.residency.model_management.rules import current

Patches = Mapping[str, Sequence[Patch]]


@dataclass
class _Stay:
    """Copies that replace a module's tensors, and how many calls use them."""

    copies: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = field(
        default_factory=list
    )
    """(table of the module, name in it, original, copy)"""
    versions: dict[int, int] = field(default_factory=dict)
    """The version of each unpatched copy when it was made, by its id."""
    threads: set[int] = field(default_factory=set)


class Casting:
    """Hooks on one part: its tensors are copied to the input's device for each call."""

    def __init__(self, part: ModelPart, device: torch.device, patches: Patches) -> None:
        self._device = device
        self._places = [(path, name, slot.key) for path, name, slot in part.places]
        self._patches = patches  # read in each call, as it may change
        self._stays: weakref.WeakKeyDictionary[nn.Module, _Stay] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        module = part.module()
        if module is not None:
            # Innermost: last of the forward pre-hooks, first of the forward hooks.
            before, after = _untraced(self._before), _untraced(self._after)
            self._handles += [
                module.register_forward_pre_hook(before, with_kwargs=True),
                module.register_forward_hook(after, prepend=True, always_call=True),
            ]

    def remove(self) -> None:
        """Remove the hooks from the module."""
        for handle in self._handles:
            handle.remove()
        self.settle()

    def settle(self) -> None:
        """Remove copies that an interrupted call left in the module."""
        with self._lock:
            for stay in self._stays.values():
                _leave(stay)
            self._stays.clear()

    def _before(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        throw_exception_if_processing_interrupted()
        # Of several devices of the input, the one that the model was loaded for.
        devices = [tensor.device for tensor in _tensors((args, kwargs))]
        device = self._device if self._device in devices or not devices else devices[0]
        with self._lock:
            stay = self._stays.get(module)
            if stay is None:
                stay = _Stay()
                try:
                    self._enter(module, stay, device)
                except BaseException:
                    _leave(stay)
                    raise
                self._stays[module] = stay
            stay.threads.add(threading.get_ident())

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        with self._lock:
            stay = self._stays.get(module)
            if stay is None:
                return
            stay.threads.discard(threading.get_ident())
            if not stay.threads:
                del self._stays[module]
                _leave(stay)

    def _enter(self, module: nn.Module, stay: _Stay, device: torch.device) -> None:
        made: dict[int, torch.Tensor] = {}  # copies of tied weights are tied too
        for path, name, key in self._places:
            owner = module.get_submodule(path)
            table = table_of(owner, name)
            original = table.get(name)
            if original is None:
                continue
            copy = made.get(id(original))
            if copy is None:
                copy = made[id(original)] = self._copy(original, key, device, stay)
            if copy is not original:
                if owner.training and name in owner._buffers:
                    stay.versions[id(copy)] = -1  # batch norm writes without counting a version
                stay.copies.append((table, name, original, copy))
                table[name] = copy

    def _copy(
        self, tensor: torch.Tensor, key: str, device: torch.device, stay: _Stay
    ) -> torch.Tensor:
        # Inference tensors have no version counter, by which writes are noticed.
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            patches = self._patches.get(key)
            if patches:
                return merge(tensor, patches, device)
            if tensor.device == device:
                return tensor
            quick = tensor.is_pinned() and current.device_supports_non_blocking(device)
            copy = cast_to(tensor, device=device, non_blocking=quick)
            stay.versions[id(copy)] = copy._version
            return copy


def _untraced(work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, hidden from torch.compile; a function, so that a copied module has the same hooks."""

    shielded: Callable[..., Any] | None = None

    @functools.wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal shielded
        if "torch._dynamo" not in sys.modules:
            return work(*args, **kwargs)
        if shielded is None:
            shielded = torch.compiler.disable(work)
        return shielded(*args, **kwargs)

    return call


def _leave(stay: _Stay) -> None:
    for table, name, original, copy in reversed(stay.copies):
        if table.get(name) is not copy:  # the module replaced it on purpose
            continue
        table[name] = original
        if stay.versions.get(id(copy), copy._version) != copy._version:
            with torch.no_grad():
                original.copy_(copy)


def _tensors(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one, depth - 1)
