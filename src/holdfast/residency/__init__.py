"""Which model lives where: weights that come and go while a model runs, under a budget.

    from holdfast import residency

    managed = residency.manage(transformer, budget="6GB", device="cuda")
    transformer(**inputs)                       # the weights that do not fit are streamed
    residency.unmanage(transformer)             # as it was

    print(residency.fit("FLUX.1-dev", budget="8GB", shape="1024x1024"))

Beside it stand the names of ComfyUI's model management: `load_models_gpu`, `free_memory`,
`unet_dtype`, `VRAMState` and the others. Names load on first use; importing this is cheap.

    plan/              which weights stay on the device, in what order the others pass through
    managed/           a module under a budget: a call, its layers, its weights
    stream/            moves weights by a plan, ahead of the layers that use them: rings, slabs
    carriers/          what moves bytes: CUDA streams, plain copies, a simulated device
    packing/           packs weights without losing a bit
    files/             weights in safetensors files
    recording/         what weights did when, and the HTML page of it
    predict/           `fit`: whether and how fast a model would run, before it is loaded
    model_management/  ComfyUI's rules (specification 002)
    interrupt          the flag that stops long work
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.residency.managed.group import Group
    from holdfast.residency.managed.lockstep import together
    from holdfast.residency.managed.lora import add_lora, remove_lora
    from holdfast.residency.managed.manage import manage, unmanage
    from holdfast.residency.managed.managed import Managed
    from holdfast.residency.predict.fit import Fit, fit

_HOME: dict[str, tuple[str, ...]] = {
    "managed.manage": ("manage", "unmanage"),
    "managed.managed": ("Managed",),
    "managed.group": ("Group",),
    "managed.lockstep": ("together",),
    "managed.lora": ("add_lora", "remove_lora"),
    "predict.fit": ("Fit", "fit"),
    "model_management.rules.states": ("CPUState", "VRAMState"),
    "model_management.rules.machine": ("Machine",),
    "model_management.rules.options": ("Options", "add_arguments", "from_args"),
    "model_management.rules.attention": ("choose_attention",),
    "model_management.rules.reserve": ("weight_budget",),
    "model_management.rules.current": (
        *("get_torch_device", "get_torch_device_name", "get_total_memory", "get_free_memory"),
        *("machine_now", "extra_reserved_memory", "minimum_inference_memory"),
        *("maximum_vram_for_weights", "device_supports_non_blocking"),
        *("unet_dtype", "unet_manual_cast", "should_use_fp16", "should_use_bf16"),
        *("supports_fp8_compute", "supports_dtype", "supports_cast", "pick_weight_dtype"),
        *("dtype_size", "text_encoder_dtype", "vae_dtype"),
        *("unet_offload_device", "unet_inital_load_device", "text_encoder_device"),
        *("text_encoder_offload_device", "text_encoder_initial_device", "intermediate_device"),
        *("vae_device", "vae_offload_device"),
        *("xformers_enabled", "xformers_enabled_vae", "pytorch_attention_enabled"),
        *("pytorch_attention_enabled_vae", "pytorch_attention_flash_attention"),
        *("force_upcast_attention_dtype", "chosen_attention"),
        *("is_nvidia", "is_amd", "is_intel_xpu", "is_ascend_npu", "is_mlu"),
        *("is_directml_enabled", "cpu_mode", "mps_mode", "is_device_type", "is_device_cpu"),
        *("is_device_mps", "is_device_xpu", "is_device_cuda"),
        *("set_options", "set_machine", "running_as"),
    ),
    "model_management.models.loaded": (
        *("LoadedModel", "current_loaded_models", "load_models_gpu", "load_model_gpu"),
        *("free_memory", "use_more_memory", "offloaded_memory", "loaded_models"),
        *("unload_all_models", "cleanup_models_gc", "cleanup_models"),
    ),
    "model_management.models.patcher": ("Patcher",),
    "model_management.models.cache": ("soft_empty_cache",),
    "interrupt": (
        *("InterruptProcessingException", "interrupt_current_processing", "interrupting"),
        *("processing_interrupted", "throw_exception_if_processing_interrupted"),
    ),
    "model_management.models.offload": (
        *("get_offload_stream", "current_stream", "sync_stream", "cast_to", "cast_to_device"),
    ),
    "model_management.models.pinned": ("pin_memory", "unpin_memory", "total_pinned_bytes"),
    "packing.pack": ("Decoder", "Layout", "decoder", "unpack"),
    "files.loading": ("Loaded", "Loading", "kept_in_fp32", "load"),
    "files.reading": ("Reading", "read_into"),
    "files.freeing": ("Held", "Holders", "Released", "holders", "released", "trim"),
    "files.checkpoint": ("TensorInfo", "read_header"),
}
# These change with the options or the machine, so they are looked up each time.
_LIVE = {
    "model_management.rules.current": (
        *("vram_state", "cpu_state", "lowvram_available", "total_vram", "total_ram"),
    ),
    "model_management.models.offload": ("NUM_STREAMS",),
}
_MODULE_OF = {
    name: module for homes in (_HOME, _LIVE) for module, names in homes.items() for name in names
}


# What tools see; the rest of the names are those of the table above.
__all__ = ["Fit", "Group", "Managed", "add_lora", "fit", "manage"]
__all__ += ["remove_lora", "together", "unmanage"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
