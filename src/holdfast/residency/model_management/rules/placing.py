"""On which device a part of a pipeline is built, run and kept.

Pure functions. Devices are named as in torch ("cuda:0"); `current` has the same functions with
torch objects and the memory that is free now. Unknown memory counts as none.
"""

from __future__ import annotations

from holdfast.residency.model_management.rules.machine import Machine, device_type, in_use
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.precision import dtype_size, should_use_fp16
from holdfast.residency.model_management.rules.reserve import GIB, vram_state
from holdfast.residency.model_management.rules.states import VRAMState

CPU = "cpu"


def torch_device(machine: Machine, options: Options) -> str:
    """The device that computes."""
    return in_use(machine, options).device


def unet_offload_device(machine: Machine, options: Options) -> str:
    """Where a diffusion model is kept while it does not run."""
    if vram_state(machine, options) is VRAMState.HIGH_VRAM:
        return torch_device(machine, options)
    return CPU


def unet_inital_load_device(machine: Machine, options: Options, parameters: int, dtype: str) -> str:
    """Where a diffusion model is built: on the device if that has more memory free now."""
    state, device = vram_state(machine, options), torch_device(machine, options)
    if state in (VRAMState.HIGH_VRAM, VRAMState.SHARED):
        return device
    if options.disable_smart_memory or state is VRAMState.NO_VRAM:
        return CPU
    free, host_free = (_free(machine, options, place) for place in (device, CPU))
    return device if free > host_free and dtype_size(dtype) * parameters < free else CPU


def text_encoder_device(machine: Machine, options: Options) -> str:
    """Where a text encoder runs: on the device if it fits and the device supports fp16."""
    if options.gpu_only:
        return torch_device(machine, options)
    if vram_state(machine, options) not in (VRAMState.HIGH_VRAM, VRAMState.NORMAL_VRAM):
        return CPU
    fp16 = should_use_fp16(machine, options, prioritize_performance=False)
    return torch_device(machine, options) if fp16 else CPU


def text_encoder_initial_device(
    machine: Machine, options: Options, load_device: str, offload_device: str, model_size: int = 0
) -> str:
    """Where a text encoder of `model_size` bytes is built: where it runs, if large and it fits."""
    if load_device == offload_device or model_size <= GIB:
        return offload_device
    if device_type(load_device) == "mps":
        return load_device
    free, rest = (_free(machine, options, place) for place in (load_device, offload_device))
    return load_device if free > rest * 0.5 and model_size * 1.2 < free else offload_device


def intermediate_device(machine: Machine, options: Options) -> str:
    """Where latents, images, text encoders and VAEs are kept while they are not used."""
    return torch_device(machine, options) if options.gpu_only else CPU


text_encoder_offload_device = vae_offload_device = intermediate_device


def vae_device(machine: Machine, options: Options) -> str:
    """Where a VAE runs."""
    return CPU if options.cpu_vae else torch_device(machine, options)


def _free(machine: Machine, options: Options, device: str) -> int:
    machine = in_use(machine, options)
    free = machine.ram_free_bytes if device_type(device) == "cpu" else machine.free_bytes
    return free or 0
