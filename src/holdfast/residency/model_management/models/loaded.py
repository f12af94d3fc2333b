"""The list of loaded models, and making room for others.

Every model with weights on a device because of a load is listed, also after a load that failed or
was interrupted. Models are held weakly. Any thread may load; loads run one at a time.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.residency.files.freeing import who_keeps
from holdfast.residency.model_management.models.cache import soft_empty_cache
from holdfast.residency.model_management.models.loaded_model import ALL, LoadedModel
from holdfast.residency.model_management.models.patcher import Patcher
from holdfast.residency.model_management.rules import current, reserve
from holdfast.residency.model_management.rules.states import VRAMState

NOTHING_MORE = 0.1  # bytes: 0 means everything
_log = logging.getLogger(__name__)


def unload_order(rows: Iterable[tuple[int, int, int, int]]) -> list[int]:
    """Indices of (bytes away, references, bytes, index): mostly away, little held, small first."""
    return [row[-1] for row in sorted((-away, *rest) for away, *rest in rows)]


class Memory(Protocol):
    """Device memory in bytes, as the loader asks for it."""

    def free(self, device: torch.device) -> int: ...  # torch's unused cache included
    def cached(self, device: torch.device) -> int: ...  # the part of it in torch's cache
    def empty(self) -> None: ...  # frees torch's unused cache


class DeviceMemory:
    """The memory of this machine's devices."""

    def free(self, device: torch.device) -> int:
        return current.get_free_memory(device)

    def cached(self, device: torch.device) -> int:
        return current.get_free_memory(device, torch_free_too=True)[1]

    def empty(self) -> None:
        soft_empty_cache()


class Manager:
    """A list of loaded models and the memory they share."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.models: list[LoadedModel] = []
        """Most recently loaded first."""
        self._lock = threading.RLock()
        self._patchers: weakref.WeakKeyDictionary[nn.Module, Patcher] = weakref.WeakKeyDictionary()
        self._unclean = False

    # ---- loading

    def load(
        self,
        models: Iterable[Patcher | nn.Module],
        memory_required: int = 0,
        force_patch_weights: bool = False,
        minimum_memory_required: int | None = None,
        force_full_load: bool = False,
    ) -> None:
        """Load models on their devices, whole if they fit, else in part.

        Others are unloaded for 1.1 times their weights and the memory to compute with: the larger
        of `minimum_inference_memory` and `memory_required` with the reserve;
        `minimum_memory_required` is what has to stay free at least, when less will do. A plain
        module is loaded on the device that computes. Raises InterruptProcessingException between
        two parts.
        """
        with self._lock:
            self.cleanup_gc()
            requested = self._list_requested(models)
            wanted = [self._entry(patcher) for patcher in requested]
            needs = (memory_required, minimum_memory_required)
            try:
                self._make_room(wanted, *needs)
                for entry in wanted:
                    budget = self._budget(entry, *needs, force_full_load)
                    entry.model_load(budget, force_patch_weights)
                    self._delist(entry)
                    self.models.insert(0, entry)
            except BaseException:
                for entry in wanted:
                    if entry.model_loaded_memory() == 0:
                        entry.model_unload()
                        self._delist(entry)
                raise

    def _list_requested(self, models: Iterable[Patcher | nn.Module]) -> list[Patcher]:
        """The patchers to load, each once and in order, with their attached models."""
        found: dict[int, Patcher] = {}
        for model in models:
            patcher = self._patcher(model)
            for one in (patcher, *patcher.model_patches_models()):
                found.setdefault(id(one), one)
        return list(found.values())

    def _patcher(self, model: Any) -> Patcher:
        if not isinstance(model, nn.Module):
            if hasattr(model, "partially_load"):
                return model
            raise BadInput(
                f"cannot load a {type(model).__name__}",
                expected="a torch.nn.Module, or a Patcher of one",
            )
        if model not in self._patchers:
            places = current.get_torch_device(), current.unet_offload_device()
            self._patchers[model] = Patcher(model, *places, keep_model=False)
        return self._patchers[model]

    def _entry(self, patcher: Patcher) -> LoadedModel:
        """The entry for `patcher`; replaces those of its clones in the list."""
        listed = list(self.models)
        entry = next((one for one in listed if one.model is patcher), None)
        clones = [one for one in listed if one is not entry and patcher.is_clone(one.model)]
        if entry is None:
            _log.info("requested to load %s", type(patcher.model).__name__)
            entry = LoadedModel(patcher, self.cleanup)
            self.models.insert(0, entry)
        for clone in clones:
            clone.model.detach(unpatch_all=False)
            clone.forget()
            self._delist(clone)
        entry.list_as_real()
        entry.currently_used = True
        return entry

    def _make_room(
        self, wanted: Sequence[LoadedModel], memory_required: int, minimum: int | None
    ) -> None:
        machine, options = current.machine(), current.options()
        needs: dict[torch.device, int] = {}
        for entry in wanted:
            more = entry.model_memory_required(entry.device)
            needs[entry.device] = needs.get(entry.device, 0) + more
        devices = [device for device in needs if device.type != "cpu"]
        for device in devices:
            goal = reserve.memory_to_free(machine, options, needs[device], memory_required)
            self.free(goal, device, wanted)
        least = memory_required if minimum is None else minimum
        least_bytes = reserve.memory_for_computing(machine, options, least)
        for device in devices:
            if self.memory.free(device) < least_bytes:
                gone = self.free(least_bytes, device, wanted)
                _log.info("%d models unloaded", len(gone))

    def _budget(
        self, entry: LoadedModel, memory_required: int, minimum: int | None, force_full_load: bool
    ) -> float:
        """How many bytes more to load, as `model_load` takes them."""
        loaded_bytes = entry.model_loaded_memory()
        budget_bytes = reserve.weight_budget(
            current.machine(),
            current.options(),
            free_bytes=self.memory.free(entry.device),
            loaded_bytes=loaded_bytes,
            memory_required=memory_required,
            minimum_memory_required=minimum,
            force_full_load=force_full_load,
            device=str(entry.device),
        )
        if budget_bytes is None:
            return 0
        return budget_bytes - loaded_bytes or NOTHING_MORE

    # ---- making room

    def free(
        self, memory_required: float, device: torch.device, keep_loaded: Sequence[LoadedModel] = ()
    ) -> list[LoadedModel]:
        """Unload models, in part if that suffices, until so many bytes are free on `device`.

        Returns those that were unloaded as a whole. Frees torch's cache if there were any, or if
        it holds more than a quarter of what is free. Never touches `keep_loaded` and leaked models.
        """
        with self._lock:
            self.cleanup_gc()
            unloaded = []
            for entry in self._can_unload(device, keep_loaded):
                missing = None  # unload everything, whatever is free
                if not current.options().disable_smart_memory:
                    missing = memory_required - self.memory.free(device)
                if missing is not None and missing < 0:
                    break
                if entry.model is None:  # it was just freed in another thread
                    continue
                _log.debug("unloading %s", type(entry.model.model).__name__)
                if entry.model_unload(missing):
                    self._delist(entry)
                    unloaded.append(entry)
            keeps_cache = current.vram_state is VRAMState.HIGH_VRAM
            if unloaded or (
                not keeps_cache and self.memory.cached(device) > self.memory.free(device) * 0.25
            ):
                self.memory.empty()
            return unloaded

    def _can_unload(
        self, device: torch.device, keep_loaded: Sequence[LoadedModel]
    ) -> list[LoadedModel]:
        rows, listed = [], list(self.models)  # a freed module may leave the list at any time
        for index, entry in enumerate(listed):
            if entry.device != device or entry in keep_loaded or entry.model is None:
                continue
            entry.currently_used = False
            away = entry.model_offloaded_memory()
            rows.append((away, sys.getrefcount(entry.model), entry.model_memory(), index))
        return [listed[index] for index in unload_order(rows)]

    # ---- freed models

    def cleanup_gc(self) -> None:
        """Collect garbage if a module outlives its patchers; warn who holds it if it still does."""
        with self._lock:
            if self._unclean:
                self.cleanup()
            dead = [one for one in list(self.models) if one.is_dead() and not one.warned]
            if not dead:
                return
            gc.collect()
            self.memory.empty()
            for entry in dead:
                real = entry.real_model() if entry.is_dead() and entry.real_model else None
                if real is not None:
                    entry.warned = True
                    _log.warning(
                        "memory leak: %s is on %s, and cannot be unloaded, as its patcher is "
                        "gone; it is kept by %s",
                        type(real).__name__,
                        entry.device,
                        "; ".join(who_keeps(real, without=__name__.rpartition(".")[0])),
                    )

    def cleanup(self) -> None:
        """Remove freed modules from the list. Called automatically when one is freed."""
        # A module may be freed in any thread; waiting for the lock there could block a load.
        if not self._lock.acquire(blocking=False):
            self._unclean = True
            return
        try:
            self._unclean = False
            for entry in [one for one in list(self.models) if one.is_gone()]:
                self._delist(entry)
        finally:
            self._lock.release()

    def _delist(self, entry: LoadedModel) -> None:
        self.models[:] = [one for one in self.models if one is not entry]


_process = Manager(DeviceMemory())
current_loaded_models = _process.models
load_models_gpu = _process.load
free_memory = _process.free
cleanup_models_gc = _process.cleanup_gc
cleanup_models = _process.cleanup
LoadedModel.clean_up = cleanup_models


def load_model_gpu(model: Patcher | nn.Module) -> None:
    """Load one model on its device."""
    load_models_gpu([model])


def use_more_memory(
    extra_memory: float, loaded_models: Iterable[LoadedModel], device: torch.device
) -> None:
    """Load up to that many bytes more of the partly loaded models on `device`, in list order."""
    for entry in loaded_models:
        if entry.device == device:
            extra_memory -= entry.model_use_more_vram(extra_memory)
            if extra_memory <= 0:
                break


def offloaded_memory(loaded_models: Iterable[LoadedModel], device: torch.device) -> int:
    """Bytes of models of `device` that are not on it."""
    return sum(one.model_offloaded_memory() for one in loaded_models if one.device == device)


def loaded_models(only_currently_used: bool = False) -> list[Patcher]:
    """The patchers of all listed models, or of those loaded by the last call that needed them."""
    entries = [one for one in list(current_loaded_models) if one.model is not None]
    return [one.model for one in entries if one.currently_used or not only_currently_used]


def unload_all_models() -> None:
    """Unload every model from every device."""
    for device in {current.get_torch_device()} | {
        one.device for one in list(current_loaded_models)
    }:
        free_memory(ALL, device)
