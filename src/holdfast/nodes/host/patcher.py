"""ComfyUI's ModelPatcher, with weights that stream instead of staying or being cast layer by layer.

Covers: coming to the device, leaving it, sharing a model with patchers of ComfyUI's own, LoRA.
Leaves to others: the streaming itself (residency.streaming).
Promise: a model that another patcher loads is given back to it first, as it was. Patches (LoRA and
their like) are merged by ComfyUI's own functions before the first pass, so that results are those
of a model that is loaded completely.

A ModelPatcher is what ComfyUI asks about a model's weights; this is one more kind of it. To make
another patcher of the same model notice that its weights are elsewhere, the model is marked as
having other patches: that patcher then moves it to the host before anything else, and there the
streaming ends.
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
# Where a model remembers how it is streamed, beside what ComfyUI itself writes on it.
_STATE = "holdfast_streaming"
# A patch of one of these would take the streaming off, or leave it behind.
_WHOLE = ("diffusion_model", "diffusion_model.forward")


class StreamedPatcher(_patcher.ModelPatcher):
    """A model of ComfyUI under a budget for its weights. Made by `streamed`."""

    budget_bytes: int | None = None  # None: what ComfyUI would give to the weights
    pack = True

    def clone(self, *args: Any, **kwargs: Any) -> Any:
        """As ComfyUI's, with the budget."""
        made = super().clone(*args, **kwargs)
        made.budget_bytes, made.pack = self.budget_bytes, self.pack
        return made

    # ---- what is known

    @property
    def _streaming(self) -> Streaming | None:
        found = getattr(self.model, _STATE, None)
        return found if found is not None and found.active else None

    @property
    def _can_stream(self) -> bool:
        """Not where everything stays on the device, or hooks change weights from step to step."""
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

    # ---- coming

    def partially_load(
        self, device_to: Any, extra_memory: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Come to the device with that much more memory for weights."""
        if not self._can_stream:
            self._end()
            return super().partially_load(device_to, extra_memory, force_patch_weights)
        with self.use_ejected(skip_and_inject_on_exit_only=True):
            held = self.loaded_size()  # by whomever: that much is free once they left
            if self._is_current and not force_patch_weights:
                super().unpatch_model(self.offload_device, unpatch_weights=False)
            else:
                self.unpatch_model(self.offload_device)
            self.patch_model(load_weights=False)
            try:
                self.load(device_to, lowvram_model_memory=max(1, held + extra_memory))
            except BaseException:  # an interrupt too: nobody may take it for loaded
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
        """Have the weights stream, with that much memory for them; 0 is all there is."""
        if not self._can_stream:
            self._end()
            super().load(device_to, lowvram_model_memory, force_patch_weights, full_load)
            return
        granted = self.budget_bytes
        if granted is None and 0 < lowvram_model_memory < 1e30:
            granted = int(lowvram_model_memory)
        if not self._is_current:
            self._end()
            # ComfyUI loads it completely, as if host memory were the device, patches merged.
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
        self.model.model_loaded_weight_memory = 0  # what the others would find of their own
        self.model.model_lowvram = True  # they take weight functions off then
        self.model.current_weight_patches_uuid = uuid.uuid4()

    def patch_weight_to_device(
        self, key: str, device_to: Any = None, inplace_update: bool = False
    ) -> Any:
        """Merge patches into a weight on the device, where that is fast; the result stays home."""
        if not self._can_stream or key not in self.patches:
            return super().patch_weight_to_device(key, device_to, inplace_update)
        super().patch_weight_to_device(key, self.load_device, inplace_update)
        merged = _utils.get_attr(self.model, key)
        if merged.device != self.offload_device:
            _utils.set_attr_param(self.model, key, merged.to(self.offload_device))
        return None

    # ---- leaving

    def partially_unload(
        self, device_to: Any, memory_to_free: float = 0, force_patch_weights: bool = False
    ) -> int:
        """Leave the device; the next pass comes back with what it is granted then."""
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
        else:  # somebody loads the model next: that much is free for it then
            self.model.model_loaded_weight_memory = found.held_bytes
        for callback in self.get_all_callbacks(_extension.CallbacksMP.ON_DETACH):
            callback(self, unpatch_all)
        return self.model

    def unpatch_model(self, device_to: Any = None, unpatch_weights: bool = True) -> None:
        """The model as it was; the streaming ends where weights are unpatched."""
        if unpatch_weights:
            self._end()
        super().unpatch_model(device_to, unpatch_weights)

    def _end(self) -> None:
        found = self._streaming
        if found is not None:
            found.end()
        if hasattr(self.model, _STATE):
            delattr(self.model, _STATE)


def streamed(model: Any, budget_bytes: int | None, pack: bool) -> StreamedPatcher:
    """A clone of ComfyUI's patcher that streams. Raises Unsupported for patchers of other packs."""
    if type(model) not in (_patcher.ModelPatcher, StreamedPatcher):
        raise Unsupported(
            f"cannot stream this model: its loader brought a {type(model).__name__}, "
            "which moves weights in its own way",
            expected="a model of ComfyUI's own loaders",
            hint="Load Checkpoint or Load Diffusion Model, then Stream Model",
        )
    made = model.clone()
    made.__class__ = StreamedPatcher  # a clone has everything that a patcher has, whatever version
    made.budget_bytes, made.pack = budget_bytes, pack
    return made
