"""`Patcher`: a model that can be loaded whole or in part, with patches to its weights.

After an interrupt or OutOfMemory the model can be called, reports what is loaded, and can be loaded
again. `detach` restores every weight bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.model_management.models.cache import soft_empty_cache
from holdfast.residency.model_management.models.merging import Change, Patch, check_patch
from holdfast.residency.model_management.models.parts import choose
from holdfast.residency.model_management.models.residence import (
    Residence,
    cheap_first,
    residence_of,
)


class Patcher:
    """A module with the device it runs on, the device it is offloaded to, and its patches.

    Patchers of one module share what is loaded; each has patches of its own. `keep_host` keeps the
    weights on the offload device while they are loaded: unloading is then free, and host memory is
    not. `whole` names classes of modules that use the weights of modules they do not call.
    """

    def __init__(
        self,
        model: nn.Module,
        load_device: torch.device | str,
        offload_device: torch.device | str = "cpu",
        *,
        size: int = 0,
        keep_host: bool = False,
        whole: tuple[type[nn.Module], ...] = (),
        keep_model: bool = True,
    ) -> None:
        self._held = model if keep_model else None
        self._model = weakref.ref(model)
        self.load_device = full_device(load_device)
        self.offload_device = full_device(offload_device)
        self.keep_host = keep_host
        self.size = size
        self.patches: dict[str, tuple[Patch, ...]] = {}
        self.attachments: dict[str, Any] = {}
        """Objects that belong to the model; those with a `to` method move with it."""
        self.parent: Patcher | None = None
        self._version = object()
        self._residence = residence_of(model, whole)

    # ---- what it is

    @property
    def model(self) -> nn.Module:
        """The module; None if it was held weakly and freed (not in the type)."""
        found: Any = self._model()
        return found

    def model_size(self) -> int:
        """Bytes of all weights and buffers, tied ones once; `size` if it was given."""
        return self.size or self._residence.size_bytes

    def loaded_size(self) -> int:
        """Bytes of weights that are on the load device now."""
        return self._residence.loaded_bytes

    def offload_buffer_size(self) -> int:
        """The most bytes that offloaded parts take on the load device during a call."""
        return self._residence.buffer_bytes

    def model_dtype(self) -> torch.dtype | None:
        """The dtype of the weights: by the model's own method, else of its first parameter."""
        ask = getattr(self.model, "get_dtype", None)
        if callable(ask):
            answer: Any = ask()
            return answer
        found = (p.dtype for p in self.model.parameters() if p.dtype.is_floating_point)
        return next(found, None)

    def memory_required(self, input_shape: Sequence[int]) -> int | None:
        """Bytes that a call with such an input needs beside the weights; None if unknown."""
        ask: Any = getattr(self.model, "memory_required", None)
        return None if ask is None else int(ask(input_shape=input_shape))

    def current_loaded_device(self) -> torch.device:
        """Where the model runs now: the offload device while nothing is loaded."""
        return self._residence.device or self.offload_device

    def lowvram_patch_counter(self) -> int:
        """How many weights are merged with their patches in each call."""
        return self._residence.patched_away()

    # ---- clones and patches

    def clone(self) -> Patcher:
        """Another patcher of the same module, with the same patches to begin with."""
        twin = Patcher(
            self.model,
            self.load_device,
            self.offload_device,
            size=self.size,
            keep_host=self.keep_host,
        )
        twin.patches = dict(self.patches)
        twin.attachments = dict(self.attachments)
        twin._version = self._version
        twin.parent = self
        return twin

    def is_clone(self, other: Any) -> bool:
        """Whether `other` is a patcher of the same module."""
        return self.model is not None and getattr(other, "model", None) is self.model

    def clone_has_same_weights(self, clone: Patcher) -> bool:
        """Whether `clone` gives the module the same weights."""
        return self.is_clone(clone) and clone._version is self._version

    def model_patches_models(self) -> list[Patcher]:
        """Other models that have to be loaded with this one: attachments that are patchers."""
        return [one for one in self.attachments.values() if isinstance(one, Patcher)]

    def model_patches_to(self, target: torch.device | torch.dtype | None) -> None:
        """Move or cast attachments; patches of weights stay exact and do not move."""
        for name, one in self.attachments.items():
            if target is not None and hasattr(one, "to") and not isinstance(one, Patcher):
                self.attachments[name] = one.to(target)

    def add_patches(
        self,
        patches: Mapping[str, tuple[float, Change] | Change],
        strength_patch: float = 1.0,
        strength_model: float = 1.0,
    ) -> list[str]:
        """Add changes to weights by their names; returns the names that the model has.

        A value is a change or (strength, change); a change is a tensor of the weight's shape or a
        pair (up, down). They take effect with the next load. Raises BadInput, and adds nothing, if
        one does not fit its weight.
        """
        added: dict[str, tuple[Patch, ...]] = {}
        for name, value in patches.items():
            key = self._residence.key(name)
            if key is not None:
                patch = _patch(name, value, strength_patch, strength_model)
                patch = check_patch(name, patch, self._residence.tensor(key))
                added[key] = (*added.get(key, self.patches.get(key, ())), patch)
        self.patches |= added
        self._version = object() if added else self._version
        return [name for name in patches if self._residence.key(name) is not None]

    # ---- loading

    def partially_load(
        self, device_to: torch.device, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Load up to `extra_memory` bytes more; returns how many more are loaded now.

        Negative: unload as many instead, and return 0. Other patches than those that are merged,
        or `force_patch_weights`, unload the model first. Parts that stay away merge their patches
        in each call, with `force_patch_weights` now. Raises InterruptProcessingException between
        two parts.
        """
        home = self._residence
        device_to = full_device(device_to)
        with home.lock:
            before = home.loaded_bytes
            if self._is_stale(device_to, force_patch_weights):
                home.close(self.offload_device)
                extra_memory += before
            elif extra_memory < 0:
                self.partially_unload(self.offload_device, int(-extra_memory), force_patch_weights)
                return 0
            before = home.loaded_bytes
            home.open(device_to, dict(self.patches), self._version)
            self._load(home, before + extra_memory)
            self._settle_rest(home, force_patch_weights)
            return home.loaded_bytes - before

    def _is_stale(self, device: torch.device, force_patch_weights: bool) -> bool:
        home = self._residence
        if home.device is None:
            return False
        other = home.version is not self._version or home.device != device
        return other or (force_patch_weights and home.patched_away() > 0)

    def _load(self, home: Residence, budget_bytes: float) -> None:
        choice = choose(home.costs(), budget_bytes, home.there)
        for name in choice.kept:
            if name in home.there:
                continue
            throw_exception_if_processing_interrupted()
            if not self._load_one(home, name):
                return

    def _load_one(self, home: Residence, name: str, again: bool = False) -> bool:
        """Load a part; False if the device has no room and the part can stay offloaded."""
        try:
            home.load(name, self.keep_host)
        except torch.OutOfMemoryError:
            if again and home.parts[name].fixed:
                raise
        else:
            return True
        if not again:
            soft_empty_cache(force=True)
            return self._load_one(home, name, again=True)
        # The part that did not fit needs room in each call, as do other offloaded ones.
        self.partially_unload(self.offload_device, home.buffer_bytes)
        return False

    def _settle_rest(self, home: Residence, force_patch_weights: bool) -> None:
        for name in home.parts:
            if name not in home.there:
                throw_exception_if_processing_interrupted()
                if force_patch_weights:
                    home.merge_away(name)
                home.pin_away(name)

    def partially_unload(
        self, device_to: torch.device, memory_to_free: int = 0, force_patch_weights: bool = False
    ) -> int:
        """Unload the cheapest parts until so many bytes are free; returns the bytes that left."""
        home, freed = self._residence, 0
        with home.lock:
            buffer_before = home.buffer_bytes
            for cost in cheap_first(home):
                if freed - max(0, home.buffer_bytes - buffer_before) >= memory_to_free:
                    break
                freed += home.unload(cost.name, full_device(device_to))
                if force_patch_weights:
                    home.merge_away(cost.name)
                home.pin_away(cost.name)
        return freed

    def detach(self, unpatch_all: bool = True) -> nn.Module:
        """Unload everything and restore every weight; with False only move attachments."""
        self.model_patches_to(self.offload_device)
        if unpatch_all:
            self._residence.close(self.offload_device)
        return self.model


def _patch(name: str, value: Any, strength: float, strength_model: float) -> Patch:
    if isinstance(value, torch.Tensor):
        return Patch(strength, value, strength_model)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, second = value
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            return Patch(strength, (first, second), strength_model)
        if isinstance(first, (int, float)):
            return _patch(name, second, first * strength, strength_model)
    raise BadInput(
        f"cannot patch {name!r} with a {type(value).__name__}",
        expected="a tensor, a pair (up, down) of tensors, or (strength, either of them)",
    )


def full_device(device: torch.device | str) -> torch.device:
    """`device` with its index, if it has one: "cuda" is the current one, as in torch."""
    device = torch.device(device)
    if device.index is not None or device.type in ("cpu", "mps", "meta"):
        return device
    return torch.device(device.type, torch.get_device_module(device.type).current_device())
