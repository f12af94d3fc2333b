"""Where the parts of one model are, and moving them one by one.

Covers: loading and unloading a part, patched weights and what they were, the hooks of what is
away, locking what is away into RAM.
Leaves to others: which parts (parts.choose, patcher), when (loaded).
Promise: between two moves, and after one that failed, the model can be called and computes what it
should; unloading gives each weight back the bits it had; a model has one residence, however many
patchers it has, and the residence does not keep it alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.residency.models.casting import Casting
from holdfast.residency.models.merging import Patch, merged, merging_bytes
from holdfast.residency.models.parts import Cost, Part, Slot, costly_first, split
from holdfast.residency.models.pinned import pin_memory, unpin_memory

Patches = Mapping[str, Sequence[Patch]]


class Residence:
    """The parts of a model: which are on its device (`there`), and how those that are not run."""

    def __init__(self, model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> None:
        self.parts = {part.name: part for part in split(model, whole)}
        self.size_bytes = sum(part.size_bytes for part in self.parts.values())
        self.device: torch.device | None = None
        """Where the model runs; None while it is wholly away."""
        self.there: set[str] = set()
        self.patches: Patches = {}
        self.version: object = None
        """Which patches those are, by identity; None while the model is wholly away."""
        self.lock = threading.RLock()
        self._castings: dict[str, Casting] = {}
        self._originals: dict[str, torch.Tensor] = {}  # by key: what unloading puts back
        self._to_merge: dict[str, Sequence[Patch]] = {}  # by key: what calls have to merge
        self._slots = {slot.key: slot for part in self.parts.values() for slot in part.slots}
        self._keys = _keys(self.parts.values())

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights on the device, between two calls."""
        return sum(self.parts[name].size_bytes for name in self.there)

    @property
    def buffer_bytes(self) -> int:
        """Bytes that a part that is away takes on the device while it runs, at most."""
        away = [cost for cost in self.costs() if cost.name not in self.there]
        return max((cost.offload_bytes for cost in away), default=0)

    def costs(self, patches: Patches | None = None) -> list[Cost]:
        """What each part costs there and away, with these patches (None: those it has)."""
        patches = self.patches if patches is None else patches
        return [_cost(part, patches) for part in self.parts.values()]

    def patched_away(self) -> int:
        """How many weights are merged with their patches anew in each call."""
        return len(self._to_merge)

    def key(self, name: str) -> str | None:
        """The one key of a tensor that the model has under `name`; None if it has none there."""
        return self._keys.get(name)

    def tensor(self, key: str) -> torch.Tensor:
        """The tensor of that key as it is now."""
        return self._slots[key].get()

    def open(self, device: torch.device, patches: Patches, version: object) -> None:
        """Let the model run on `device` with these patches. Nothing is moved yet."""
        with self.lock:
            self.device, self.patches, self.version = device, patches, version
            for part in self.parts.values():
                if part.name not in self.there:
                    self._let_calls_merge(part)
                    self._add_casting(part.name)

    def load(self, name: str, keep_host: bool = False) -> None:
        """Bring a part to the device, whole or not at all; patches are merged.

        `keep_host` keeps what was away, so that unloading needs no copy back.
        """
        part = self.parts[name]
        with self.lock:
            self._settle(name)
            brought = [(slot, *self._brought(slot, keep_host)) for slot in part.slots]
            for slot, original, data in brought:
                unpin_memory(slot.get())
                if original is not None:
                    self._originals[slot.key] = original
                self._to_merge.pop(slot.key, None)
                slot.put(data)
            self.there.add(name)
            if not part.shares:  # else the other owner may be away
                self._drop_casting(name)

    def unload(self, name: str, offload_device: torch.device) -> int:
        """Take a part off the device, every bit as it was; returns the bytes freed there."""
        part = self.parts[name]
        with self.lock:
            self._settle(name)
            self._add_casting(name)
            for slot in part.slots:
                self._restore(slot, offload_device)
            was_there = name in self.there
            self.there.discard(name)
            self._let_calls_merge(part)
            return part.size_bytes if was_there else 0

    def merge_away(self, name: str) -> None:
        """Merge the patches of a part that is away once, instead of in each call."""
        with self.lock:
            for slot in self.parts[name].slots:
                if slot.key not in self._to_merge:
                    continue
                tensor = slot.get().detach()
                data = merged(tensor, self._to_merge[slot.key], self.device).to(tensor.device)
                unpin_memory(tensor)
                self._originals[slot.key] = tensor
                del self._to_merge[slot.key]
                slot.put(data)

    def pin_away(self, name: str) -> None:
        """Lock the weights of a part that is away into RAM, as far as the budget goes."""
        for slot in self.parts[name].slots:
            pin_memory(slot.get())

    def close(self, offload_device: torch.device) -> None:
        """Take everything off the device and the hooks off the model: it is as it was before."""
        with self.lock:
            for name in self.parts:
                self.unload(name, offload_device)
            for name in list(self._castings):
                self._drop_casting(name)
            for slot in self._slots.values():
                unpin_memory(slot.get())
            self._to_merge.clear()
            self.device, self.version, self.patches = None, None, {}

    def _brought(self, slot: Slot, keep_host: bool) -> tuple[torch.Tensor | None, torch.Tensor]:
        """What unloading shall put back (None: what is on the device then), and what to put."""
        original = self._originals.get(slot.key)
        tensor = slot.get().detach() if original is None else original
        patches = self.patches.get(slot.key)
        if patches:
            return tensor, merged(tensor, patches, self.device)
        return (tensor if keep_host else None), tensor.to(device=self.device)

    def _restore(self, slot: Slot, offload_device: torch.device) -> None:
        original = self._originals.get(slot.key)
        data = slot.get().detach() if original is None else original
        if original is not None or data.device != offload_device:
            slot.put(data.to(offload_device))
        self._originals.pop(slot.key, None)

    def _let_calls_merge(self, part: Part) -> None:
        for slot in part.slots:
            if slot.key in self.patches and slot.key not in self._originals:
                self._to_merge[slot.key] = self.patches[slot.key]

    def _add_casting(self, name: str) -> None:
        if name not in self._castings and self.device is not None:
            self._castings[name] = Casting(self.parts[name], self.device, self._to_merge)

    def _settle(self, name: str) -> None:
        if name in self._castings:
            self._castings[name].settle()

    def _drop_casting(self, name: str) -> None:
        casting = self._castings.pop(name, None)
        if casting is not None:
            casting.remove()


def _keys(parts: Iterable[Part]) -> dict[str, str]:
    """Every name a tensor has in the model -> its key."""
    places = ((part.name, *place) for part in parts for place in part.places)
    return {
        ".".join(word for word in (name, path, at) if word): slot.key
        for name, path, at, slot in places
    }


def _cost(part: Part, patches: Patches) -> Cost:
    extra = sum(merging_bytes(slot.get().numel()) for slot in part.slots if patches.get(slot.key))
    return Cost(part.name, part.size_bytes, part.size_bytes + extra, part.fixed)


def cheap_first(residence: Residence) -> list[Cost]:
    """The order in which parts that are there leave: the cheapest to bring again first."""
    order = reversed(costly_first(residence.costs()))
    return [cost for cost in order if cost.name in residence.there and not cost.fixed]


_residences: weakref.WeakKeyDictionary[nn.Module, Residence] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def residence_of(model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> Residence:
    """The one residence of `model`; `whole` counts when it is made."""
    with _lock:
        found: Any = _residences.get(model)
        if found is None:
            found = _residences[model] = Residence(model, whole)
        return found
