"""`LoadedModel`: an entry in the list of loaded models. Keeps neither patcher nor module alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from holdfast.residency.model_management.models.patcher import Patcher

ALL = 1e30  # bytes


class LoadedModel:
    """A patcher whose model is on a device, held weakly."""

    clean_up: ClassVar[Any]  # called when a module was freed; set by the list

    def __init__(self, model: Patcher, on_gone: Callable[[], object] | None = None) -> None:
        self.device = model.load_device
        self.currently_used = True
        self.real_model: weakref.ref[nn.Module] | None = None
        self.warned = False
        self._on_gone = on_gone or LoadedModel.clean_up
        self._gone: Any = None
        self._hold(model)

    def _hold(self, model: Patcher) -> None:
        self._model = weakref.ref(model)
        self._parent = None if model.parent is None else weakref.ref(model.parent)

    @property
    def model(self) -> Patcher:
        """The patcher, or the one it was cloned from if that was freed; None (not in the type)."""
        found: Any = self._model()
        if found is None and self._parent is not None:
            found = self._parent()
            if found is not None:
                self._hold(found)
        return found  # pyright: ignore[reportReturnType]

    def model_memory(self) -> int:
        """Bytes of the whole model."""
        return self.model.model_size()

    def model_loaded_memory(self) -> int:
        """Bytes of it on the device."""
        return self.model.loaded_size()

    def model_offloaded_memory(self) -> int:
        """Bytes of it not on the device."""
        return self.model.model_size() - self.model.loaded_size()

    def model_memory_required(self, device: torch.device) -> int:
        """Additional bytes for loading the whole model on `device`."""
        if device == self.model.current_loaded_device():
            return self.model_offloaded_memory()
        return self.model_memory()

    def model_load(
        self, lowvram_model_memory: float = 0, force_patch_weights: bool = False
    ) -> nn.Module:
        """Load up to that many bytes more (0: everything); returns the module."""
        self.list_as_real()
        self.model.model_patches_to(self.device)
        self.model.model_patches_to(self.model.model_dtype())
        self.model_use_more_vram(lowvram_model_memory or ALL, force_patch_weights)
        return self.model.model

    def list_as_real(self) -> None:
        """Remove this entry when the module is freed."""
        if self._gone is None:
            real = self.model.model
            self.real_model = weakref.ref(real)
            self._gone = weakref.finalize(real, self._on_gone)
            self._gone.atexit = False

    def should_reload_model(self, force_patch_weights: bool = False) -> bool:
        """Whether patches merged in each call should be merged once instead."""
        return force_patch_weights and self.model.lowvram_patch_counter() > 0

    def model_unload(
        self, memory_to_free: float | None = None, unpatch_weights: bool = True
    ) -> bool:
        """Free that many bytes (None: all), in part if that suffices; True if nothing is left."""
        model = self.model
        if memory_to_free is not None and memory_to_free < model.loaded_size():
            wanted = int(memory_to_free)
            freed = model.partially_unload(model.offload_device, wanted)
            if freed >= wanted and model.loaded_size() > 0:
                return False
        model.detach(unpatch_weights)
        self.forget()
        return True

    def forget(self) -> None:
        """Stop watching the module."""
        if self._gone is not None:
            self._gone.detach()
        self._gone = self.real_model = None

    def model_use_more_vram(self, extra_memory: float, force_patch_weights: bool = False) -> int:
        """Load up to that many bytes more; returns how many more are loaded."""
        return self.model.partially_load(self.device, extra_memory, force_patch_weights)

    def is_dead(self) -> bool:
        """Whether the module is alive but all its patchers were freed: it cannot be unloaded."""
        return self.real_model is not None and not self.is_gone() and self.model is None

    def is_gone(self) -> bool:
        """Whether the module was freed."""
        return self.real_model is not None and self.real_model() is None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadedModel):
            return NotImplemented
        return self is other or (self.model is not None and self.model is other.model)
