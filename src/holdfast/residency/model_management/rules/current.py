"""The specification's functions for this machine, with torch devices and dtypes.

`vram_state`, `cpu_state`, `total_vram`, `total_ram` and `lowvram_available` are attributes of this
module, computed at each access. Importing it does not touch the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.residency.model_management.rules import (
    attention,
    placing,
    precision,
    reserve,
)
from holdfast.residency.model_management.rules.here import (
    cpu_mode,
    get_free_memory,
    get_torch_device,
    get_torch_device_name,
    get_total_memory,
    is_amd,
    is_ascend_npu,
    is_device_cpu,
    is_device_cuda,
    is_device_mps,
    is_device_type,
    is_device_xpu,
    is_directml_enabled,
    is_intel_xpu,
    is_mlu,
    is_nvidia,
    machine_now,
    machine_of,
    mps_mode,
)
from holdfast.residency.model_management.rules.process import (
    machine,
    options,
    running_as,
    set_machine,
    set_options,
)

# Names of other modules that are available here too.
__all__ = [
    "cpu_mode",
    "get_free_memory",
    "get_torch_device",
    "get_torch_device_name",
    "get_total_memory",
    "is_amd",
    "is_ascend_npu",
    "is_device_cpu",
    "is_device_cuda",
    "is_device_mps",
    "is_device_type",
    "is_device_xpu",
    "is_directml_enabled",
    "is_intel_xpu",
    "is_mlu",
    "is_nvidia",
    "machine",
    "machine_now",
    "mps_mode",
    "options",
    "running_as",
    "set_machine",
    "set_options",
]

_USUAL = (torch.float16, torch.bfloat16, torch.float32)
MIB = 2**20


def __getattr__(name: str) -> Any:
    states = {
        "vram_state": lambda: reserve.vram_state(machine(), options()),
        "cpu_state": lambda: reserve.cpu_state(machine(), options()),
        "lowvram_available": lambda: reserve.lowvram_available(machine(), options()),
        "total_vram": lambda: get_total_memory() / MIB,
        "total_ram": lambda: machine().ram_total_bytes / MIB,
    }
    if name in states:
        return states[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Reserve


def extra_reserved_memory() -> int:
    """Bytes of device memory that are left to other programs."""
    return reserve.extra_reserved_memory(machine(), options())


def minimum_inference_memory() -> int:
    """Bytes that must be free for a model to compute."""
    return reserve.minimum_inference_memory(machine(), options())


def maximum_vram_for_weights(device: Any = None) -> int:
    """Bytes of weights a device could hold if it held nothing else."""
    return reserve.maximum_vram_for_weights(machine_of(device), options(), _text(device))


def device_supports_non_blocking(device: Any) -> bool:
    """Whether copies to `device` may be non-blocking."""
    return reserve.supports_non_blocking(machine(), options(), _text(device))


# Precision


def _text(device: Any) -> str | None:
    return None if device is None else str(device)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_names(dtypes: Sequence[Any]) -> list[str]:
    return [_dtype_name(dtype) for dtype in dtypes]


def _dtype(word: str) -> torch.dtype:
    return getattr(torch, word)


def should_use_fp16(
    device: Any = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether a model of that many parameters should be fp16 there."""
    return precision.should_use_fp16(
        machine_of(device),
        options(),
        device=_text(device),
        model_params=model_params,
        prioritize_performance=prioritize_performance,
        manual_cast=manual_cast,
    )


def should_use_bf16(
    device: Any = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether a model of that many parameters should be bf16 there."""
    return precision.should_use_bf16(
        machine_of(device),
        options(),
        device=_text(device),
        model_params=model_params,
        prioritize_performance=prioritize_performance,
        manual_cast=manual_cast,
    )


def supports_fp8_compute(device: Any = None) -> bool:
    """Whether the device multiplies fp8 matrices itself."""
    return precision.supports_fp8_compute(machine_of(device), options(), _text(device))


def unet_dtype(
    device: Any = None,
    model_params: int = 0,
    supported_dtypes: Sequence[torch.dtype] = _USUAL,
    weight_dtype: torch.dtype | None = None,
) -> torch.dtype:
    """The dtype to keep a diffusion model's weights in."""
    found = precision.unet_dtype(
        machine_of(device),
        options(),
        device=_text(device),
        model_params=model_params,
        supported_dtypes=_dtype_names(supported_dtypes),
        weight_dtype=None if weight_dtype is None else _dtype_name(weight_dtype),
    )
    return _dtype(found)


def unet_manual_cast(
    weight_dtype: torch.dtype,
    inference_device: Any,
    supported_dtypes: Sequence[torch.dtype] = _USUAL,
) -> torch.dtype | None:
    """The dtype to compute in when weights are kept in `weight_dtype`; None for the same."""
    found = precision.unet_manual_cast(
        machine_of(inference_device),
        options(),
        _dtype_name(weight_dtype),
        _text(inference_device),
        _dtype_names(supported_dtypes),
    )
    return None if found is None else _dtype(found)


def text_encoder_dtype(device: Any = None) -> torch.dtype:
    """The dtype to keep a text encoder's weights in; the same on every device."""
    return _dtype(precision.text_encoder_dtype(options()))


def vae_dtype(device: Any = None, allowed_dtypes: Sequence[torch.dtype] = ()) -> torch.dtype:
    """The dtype a VAE computes in: the first it allows that the device should use."""
    allowed = _dtype_names(allowed_dtypes)
    where = _text(device)
    found = precision.vae_dtype(machine_of(device), options(), device=where, allowed_dtypes=allowed)
    return _dtype(found)


def supports_dtype(device: Any, dtype: torch.dtype) -> bool:
    """Whether `device` can compute in `dtype` at all."""
    return precision.supports_dtype(_text(device), _dtype_name(dtype))


def supports_cast(device: Any, dtype: torch.dtype) -> bool:
    """Whether weights of `dtype` can be cast on `device`."""
    return precision.supports_cast(machine(), options(), _text(device), _dtype_name(dtype))


def pick_weight_dtype(
    dtype: torch.dtype | None, fallback_dtype: torch.dtype, device: Any = None
) -> torch.dtype:
    """`dtype`, or `fallback_dtype` if that is smaller or `dtype` cannot be cast on `device`."""
    word = None if dtype is None else _dtype_name(dtype)
    fallback = _dtype_name(fallback_dtype)
    found = precision.pick_weight_dtype(machine(), options(), word, fallback, _text(device))
    return _dtype(found)


def dtype_size(dtype: torch.dtype) -> int:
    """Bytes of one element."""
    return dtype.itemsize


# Placement


def unet_offload_device() -> torch.device:
    """Where a diffusion model is kept while it does not run."""
    return torch.device(placing.unet_offload_device(machine(), options()))


def unet_inital_load_device(parameters: int, dtype: torch.dtype) -> torch.device:
    """Where a diffusion model is built."""
    word = _dtype_name(dtype)
    return torch.device(placing.unet_inital_load_device(machine_now(), options(), parameters, word))


def text_encoder_device() -> torch.device:
    """Where a text encoder runs."""
    return torch.device(placing.text_encoder_device(machine(), options()))


def text_encoder_offload_device() -> torch.device:
    """Where a text encoder is kept while it does not run."""
    return torch.device(placing.text_encoder_offload_device(machine(), options()))


def text_encoder_initial_device(
    load_device: torch.device, offload_device: torch.device, model_size: int = 0
) -> torch.device:
    """Where a text encoder of `model_size` bytes is built."""
    now, places = machine_now(load_device), (str(load_device), str(offload_device))
    return torch.device(placing.text_encoder_initial_device(now, options(), *places, model_size))


def intermediate_device() -> torch.device:
    """Where latents and images are kept between two stages."""
    return torch.device(placing.intermediate_device(machine(), options()))


def vae_device() -> torch.device:
    """Where a VAE runs."""
    return torch.device(placing.vae_device(machine(), options()))


def vae_offload_device() -> torch.device:
    """Where a VAE is kept while it does not run."""
    return torch.device(placing.vae_offload_device(machine(), options()))


# Attention


def xformers_enabled() -> bool:
    """Whether xformers computes attention."""
    return attention.xformers_enabled(machine(), options())


def xformers_enabled_vae() -> bool:
    """Whether xformers computes attention in VAEs."""
    return attention.xformers_enabled_vae(machine(), options())


def pytorch_attention_enabled() -> bool:
    """Whether to use torch's own attention."""
    return attention.pytorch_attention_enabled(machine(), options())


def pytorch_attention_enabled_vae() -> bool:
    """Whether to use torch's own attention in VAEs."""
    return attention.pytorch_attention_enabled_vae(machine(), options())


def pytorch_attention_flash_attention() -> bool:
    """Whether torch's attention needs little memory here."""
    return attention.pytorch_attention_flash_attention(machine(), options())


def force_upcast_attention_dtype() -> dict[torch.dtype, torch.dtype] | None:
    """Dtypes in which attention must not be computed, and what to use instead."""
    found = attention.force_upcast_attention_dtype(machine(), options())
    return None if found is None else {_dtype(k): _dtype(v) for k, v in found.items()}


def chosen_attention(device: Any = None) -> str:
    """The implementation of attention for a diffusion model here."""
    return attention.choose_attention(machine(), options(), _text(device))
