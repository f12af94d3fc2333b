"""Which parts of one model are on its device, and moving them one by one.

Between two moves, and after one that failed, the model can be called with correct results.
Unloading restores the original bits. A model has one residence, shared by its patchers, which does
not keep it alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.residency.model_management.models.casting import Casting
from holdfast.residency.model_management.models.merging import Patch, merge, merging_bytes
from holdfast.residency.model_management.models.parts import (
    Cost,
    ModelPart,
    TensorSlot,
    costly_first,
    split,
)
from holdfast.residency.model_management.models.pinned import pin_memory, unpin_memory

Patches = Mapping[str, Sequence[Patch]]


class Residence:
    """The parts of a model: which are on its device (`there`), and the hooks of the others."""

    def __init__(self, model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> None:
        self.parts = {part.name: part for part in split(model, whole)}
        self.size_bytes = sum(part.size_bytes for part in self.parts.values())
        self.device: torch.device | None = None
        """Where the model runs; None while nothing is loaded."""
        self.there: set[str] = set()
        self.patches: Patches = {}
        self.version: object = None
        """Identifies the set of patches; None while nothing is loaded."""
        self.lock = threading.RLock()
        self._castings: dict[str, Casting] = {}
        self._originals: dict[str, torch.Tensor] = {}  # by key: what unloading puts back
        self._to_merge: dict[str, Sequence[Patch]] = {}  # by key: what calls have to merge
        self._slots = {slot.key: slot for part in self.parts.values() for slot in part.slots}
        self._keys = {  # of every name of a tensor in the model
            ".".join(filter(None, (part.name, path, name))): slot.key
            for part in self.parts.values()
            for path, name, slot in part.places
        }

    @property
    def loaded_bytes(self) -> int:
        """Bytes of weights on the device between two calls."""
        return sum(self.parts[name].size_bytes for name in self.there)

    @property
    def buffer_bytes(self) -> int:
        """The most bytes that an offloaded part takes on the device during its call."""
        away = [cost for cost in self.costs() if cost.name not in self.there]
        return max((cost.offload_bytes for cost in away), default=0)

    def costs(self, patches: Patches | None = None) -> list[Cost]:
        """The cost of each part, loaded and offloaded, with these patches (None: current ones)."""
        patches = self.patches if patches is None else patches
        costs = []
        for part in self.parts.values():
            patched = (slot.get().numel() for slot in part.slots if patches.get(slot.key))
            away_bytes = part.size_bytes + sum(map(merging_bytes, patched))
            costs.append(Cost(part.name, part.size_bytes, away_bytes, part.fixed))
        return costs

    def patched_away(self) -> int:
        """How many weights are merged with their patches in each call."""
        return len(self._to_merge)

    def key(self, name: str) -> str | None:
        """The key of the tensor that the model has under `name`; None if there is none."""
        return self._keys.get(name)

    def tensor(self, key: str) -> torch.Tensor:
        """The current tensor of that key."""
        return self._slots[key].get()

    def open(self, device: torch.device, patches: Patches, version: object) -> None:
        """Set the device and patches that the model runs with. Moves nothing yet."""
        with self.lock:
            self.device, self.patches, self.version = device, patches, version
            for part in self.parts.values():
                if part.name not in self.there:
                    self._let_calls_merge(part)
                    self._add_casting(part.name)

    def load(self, name: str, keep_host: bool = False) -> None:
        """Load a part with its patches merged. `keep_host`: unloading needs no copy back then."""
        part = self.parts[name]
        with self.lock:
            self._settle(name)
            brought = [(slot, *self._bring(slot, keep_host)) for slot in part.slots]
            for slot, original, data in brought:
                unpin_memory(slot.get())
                if original is not None:
                    self._originals[slot.key] = original
                self._to_merge.pop(slot.key, None)
                slot.put(data)
            self.there.add(name)
            if not part.shares:  # else the other owner may be offloaded
                self._drop_casting(name)

    def unload(self, name: str, offload_device: torch.device) -> int:
        """Unload a part and restore its original bits; returns the bytes freed on the device."""
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
        """Merge the patches of an offloaded part once, instead of in each call."""
        with self.lock:
            for slot in self.parts[name].slots:
                if slot.key not in self._to_merge:
                    continue
                tensor = slot.get().detach()
                data = merge(tensor, self._to_merge[slot.key], self.device).to(tensor.device)
                unpin_memory(tensor)
                self._originals[slot.key] = tensor
                del self._to_merge[slot.key]
                slot.put(data)

    def pin_away(self, name: str) -> None:
        """Pin the weights of an offloaded part, within the budget."""
        for slot in self.parts[name].slots:
            pin_memory(slot.get())

    def close(self, offload_device: torch.device) -> None:
        """Unload everything and remove the hooks: the model is as it was before."""
        with self.lock:
            for name in self.parts:
                self.unload(name, offload_device)
            for name in list(self._castings):
                self._drop_casting(name)
            for slot in self._slots.values():
                unpin_memory(slot.get())
            self._to_merge.clear()
            self.device, self.version, self.patches = None, None, {}

    def _bring(self, slot: TensorSlot, keep_host: bool) -> tuple[torch.Tensor | None, torch.Tensor]:
        """(what unloading puts back, or None to copy it from the device; the device tensor)."""
        original = self._originals.get(slot.key)
        tensor = slot.get().detach() if original is None else original
        patches = self.patches.get(slot.key)
        if patches:
            return tensor, merge(tensor, patches, self.device)
        return (tensor if keep_host else None), tensor.to(device=self.device)

    def _restore(self, slot: TensorSlot, offload_device: torch.device) -> None:
        original = self._originals.get(slot.key)
        data = slot.get().detach() if original is None else original
        if original is not None or data.device != offload_device:
            slot.put(data.to(offload_device))
        self._originals.pop(slot.key, None)

    def _let_calls_merge(self, part: ModelPart) -> None:
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


def cheap_first(residence: Residence) -> list[Cost]:
    """The order in which to unload parts: the cheapest to load again first."""
    order = reversed(costly_first(residence.costs()))
    return [cost for cost in order if cost.name in residence.there and not cost.fixed]


_residences: weakref.WeakKeyDictionary[nn.Module, Residence] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def residence_of(model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> Residence:
    """The residence of `model`; `whole` applies when it is created."""
    with _lock:
        found: Any = _residences.get(model)
        if found is None:
            found = _residences[model] = Residence(model, whole)
        return found
