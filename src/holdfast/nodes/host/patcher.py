"""`StreamedPatcher`: a ModelPatcher of ComfyUI whose weights stream.

ComfyUI's own functions merge patches (LoRA) before the first pass, so results equal those of a
fully loaded model. When another patcher loads the same model, the streaming ends first: the model
is marked as having other patches, so that patcher moves it to the host before anything else.
"""

from __future__ import annotations

import importlib
import logging
import uuid
from typing import Any

from holdfast.base.errors import Unsupported
from holdfast.nodes.host.running import progress
from holdfast.nodes.residency.streaming import Streaming

_patcher: Any = importlib.import_module("comfy.model_patcher")
_extension: Any = importlib.import_module("comfy.patcher_extension")
_utils: Any = importlib.import_module("comfy.utils")
# Attribute of a model with its Streaming.
_STATE = "holdfast_streaming"
# Patching one of these would remove the streaming hooks, or leave them behind.
_WHOLE = ("diffusion_model", "diffusion_model.forward")


class StreamedPatcher(_patcher.ModelPatcher):
    """A ComfyUI model with a budget for its weights. Made by `make_streamed`."""

    budget_bytes: int | None = None  # None: what ComfyUI would give the weights
    pack = True

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        """As ComfyUI's, with the budget."""
        made = super().clone(*args, **kwargs)
        made.budget_bytes, made.pack = self.budget_bytes, self.pack
        return made

    # ---- state

    @property
    def _streaming(self) -> Streaming | None:
        found = getattr(self.model, _STATE, None)
        return found if found is not None and found.active else None

    @property
    def _can_stream(self) -> bool:
        """False if everything stays on the device, or hooks change weights during sampling."""
        everything_stays = (
            self.offload_device == self.load_device and self.load_device.type != "cpu"
        )
        return not (everything_stays or self.hook_patches or self.forced_hooks)

    @property
    def _is_current(self) -> bool:
        found = self._streaming
        return (
            found is not None
            and found.version == self.patches_uuid
            and found.pack == self.pack
            and not any(key in self.object_patches for key in _WHOLE)
        )

    def loaded_size(self) -> int:
        """What its weights take on the device now."""
        found = self._streaming
        return super().loaded_size() if found is None else found.held_bytes

    # ---- load

    def partially_load(
        self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Load with `extra_memory` more bytes for weights; returns the bytes added."""
        if not self._can_stream:
            self._end()
            return super().partially_load(device_to, extra_memory, force_patch_weights)
        with self.use_ejected(skip_and_inject_on_exit_only=True):
            held = self.loaded_size()  # free once it is unloaded
            if self._is_current and not force_patch_weights:
                super().unpatch_model(self.offload_device, unpatch_weights=False)
            else:
                self.unpatch_model(self.offload_device)
            self.patch_model(load_weights=False)
            try:
                self.load(device_to, lowvram_model_memory=max(1, held + extra_memory))
            except BaseException:  # an interrupt too: it must not count as loaded
                self.detach()
                raise
            return self.loaded_size() - held

    def load(
        self,
        device_to: Any = None,
        lowvram_model_memory: float = 0,
        force_patch_weights: bool = False,
        full_load: bool = False,
    ) -> None:
        """Stream the weights with `lowvram_model_memory` bytes for them; 0 is no limit."""
        if not self._can_stream:
            self._end()
            super().load(device_to, lowvram_model_memory, force_patch_weights, full_load)
            return
        granted = self.budget_bytes
        if granted is None and 0 < lowvram_model_memory < 1e30:
            granted = int(lowvram_model_memory)
        if not self._is_current:
            self._end()
            # ComfyUI loads it fully into host memory, with patches merged.
            super().load(self.offload_device, full_load=True)
            self._begin(granted)
        found = self._streaming
        assert found is not None
        self._mark(device_to)
        found.grant(granted)

    def _begin(self, granted: int | None) -> None:
        show = progress()
        found = Streaming.begin(
            self.model.diffusion_model,
            self.model,
            version=self.patches_uuid,
            device=self.load_device,
            granted_bytes=granted,
            pack=self.pack,
            progress=show,
        )
        setattr(self.model, _STATE, found)
        logging.info(
            "Holdfast streams %s: %.0f MB of weights, %s",
            type(self.model).__name__,
            found.weight_bytes / 2**20,
            "all that is free" if granted is None else f"{granted / 2**20:.0f} MB on the device",
        )

    def _mark(self, device_to: Any) -> None:
        self.model.device = device_to
        self.model.model_loaded_weight_memory = 0  # for other patchers of this model
        self.model.model_lowvram = True  # makes them remove weight functions
        self.model.current_weight_patches_uuid = uuid.uuid4()

    def patch_weight_to_device(
        self, key: str, device_to: Any = None, inplace_update: bool = False
    ) -> Any:
        """Merge patches into a weight on the device, which is fast; the result goes to the host."""
        if not self._can_stream or key not in self.patches:
            return super().patch_weight_to_device(key, device_to, inplace_update)
        super().patch_weight_to_device(key, self.load_device, inplace_update)
        merged = _utils.get_attr(self.model, key)
        if merged.device != self.offload_device:
            _utils.set_attr_param(self.model, key, merged.to(self.offload_device))
        return None

    # ---- unload

    def partially_unload(
        self, device_to: Any, memory_to_free: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Leave the device until the next pass; returns the bytes freed."""
        found = self._streaming
        if found is None:
            return super().partially_unload(device_to, memory_to_free, force_patch_weights)
        return found.leave()

    def detach(self, unpatch_all: bool = True) -> Any:
        """Leave the device. The weights stay prepared in host memory for the next time."""
        found = self._streaming
        if found is None or not self._is_current:
            return super().detach(unpatch_all)
        self.eject_model()
        self.model_patches_to(self.offload_device)
        if unpatch_all:
            found.leave()
            super().unpatch_model(self.offload_device, unpatch_weights=False)
            self.model.device = self.offload_device
        else:  # another patcher loads the model next, and counts this as free
            self.model.model_loaded_weight_memory = found.held_bytes
        for callback in self.get_all_callbacks(_extension.CallbacksMP.ON_DETACH):
            callback(self, unpatch_all)
        return self.model

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> None:
        """Restore the model; unpatching weights ends the streaming."""
        if unpatch_weights:
            self._end()
        super().unpatch_model(device_to, unpatch_weights)

    def _end(self) -> None:
        found = self._streaming
        if found is not None:
            found.end()
        if hasattr(self.model, _STATE):
            delattr(self.model, _STATE)


def make_streamed(model: Any, budget_bytes: int | None, pack: bool) -> StreamedPatcher:
    """Clone a ComfyUI patcher so that it streams. Raises Unsupported for other packs' patchers."""
    if type(model) not in (_patcher.ModelPatcher, StreamedPatcher):
        raise Unsupported(
            f"cannot stream this model: its loader brought a {type(model).__name__}, "
            "which moves weights in its own way",
            expected="a model of ComfyUI's own loaders",
            hint="Load Checkpoint or Load Diffusion Model, then Stream Model",
        )
    made = model.clone()
    made.__class__ = StreamedPatcher  # keeps whatever attributes this version of ComfyUI has
    made.budget_bytes, made.pack = budget_bytes, pack
    return made
