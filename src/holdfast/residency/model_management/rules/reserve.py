"""How much device memory models may take: the states, the reserve, the weight budget.

Pure functions. Bytes are integers; ComfyUI computes with fractions.
"""

from __future__ import annotations

from holdfast.residency.model_management.rules.machine import Machine, device_type, in_use
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.states import CPUState, VRAMState

MIB = 2**20
GIB = 2**30

_COMPUTING_BYTES = int(0.8 * GIB)
_LARGE_CARD_BYTES = 15 * GIB
# The part of a card's memory that weights may take.
_WEIGHTS_OF_TOTAL = 0.88
# The least part of free memory for weights, where copying them in each pass is slow.
_WEIGHTS_OF_FREE = 0.4
_PINNED_OF_RAM = 0.95
_PINNED_OF_RAM_WINDOWS = 0.45  # Windows refuses at half of it
_STREAMS_NVIDIA = 2


def cpu_state(machine: Machine, options: Options) -> CPUState:
    """Which kind of processor computes."""
    kind = in_use(machine, options).kind
    return {"cpu": CPUState.CPU, "mps": CPUState.MPS}.get(kind, CPUState.GPU)


def vram_state(machine: Machine, options: Options) -> VRAMState:
    """How models share the device's memory."""
    state = cpu_state(machine, options)
    if state is CPUState.MPS:
        return VRAMState.SHARED
    if state is CPUState.CPU:
        return VRAMState.DISABLED
    if options.lowvram:
        return VRAMState.LOW_VRAM
    if options.novram and lowvram_available(machine, options):
        return VRAMState.NO_VRAM
    if options.highvram or options.gpu_only:
        return VRAMState.HIGH_VRAM
    return VRAMState.NORMAL_VRAM


def lowvram_available(machine: Machine, options: Options) -> bool:
    """Whether models may be loaded in part. DirectML reports no free memory, so only if set."""
    return machine.kind != "directml" or options.lowvram


def extra_reserved_memory(machine: Machine, options: Options) -> int:
    """Bytes of device memory left to other programs."""
    if options.reserve_vram_bytes is not None:
        return options.reserve_vram_bytes
    if not machine.windows:
        return 400 * MIB
    # Windows silently moves device memory to RAM when it runs out: keep a larger distance.
    large = in_use(machine, options).total_bytes > _LARGE_CARD_BYTES
    return (700 if large else 600) * MIB


def minimum_inference_memory(machine: Machine, options: Options) -> int:
    """Bytes that must be free for a model to compute: 0.8 GiB plus the reserve."""
    return _COMPUTING_BYTES + extra_reserved_memory(machine, options)


def maximum_vram_for_weights(machine: Machine, options: Options, device: str | None = None) -> int:
    """Bytes of weights that an empty device could hold; negative on a tiny one."""
    machine = in_use(machine, options)
    on_host = device_type(device) in ("cpu", "mps")
    total = machine.ram_total_bytes if on_host else machine.total_bytes
    return int(total * _WEIGHTS_OF_TOTAL - minimum_inference_memory(machine, options))


def minimum_weight_ratio(machine: Machine, options: Options) -> float:
    """The least part of free memory for weights: 0 on NVIDIA, where copies are fast."""
    return 0.0 if in_use(machine, options).kind == "cuda" else _WEIGHTS_OF_FREE


def memory_for_computing(
    machine: Machine, options: Options, memory_required: int | None = None
) -> int:
    """Bytes to keep free beside the weights, for a run that says it needs `memory_required`."""
    least = minimum_inference_memory(machine, options)
    if memory_required is None:
        return least
    return max(least, int(memory_required) + extra_reserved_memory(machine, options))


def memory_to_free(
    machine: Machine, options: Options, weights_bytes: int, memory_required: int = 0
) -> int:
    """Bytes that should be free before `weights_bytes` are loaded."""
    room = memory_for_computing(machine, options, memory_required)
    return int(weights_bytes * 1.1) + room


def weight_budget(
    machine: Machine,
    options: Options,
    *,
    free_bytes: int,
    loaded_bytes: int = 0,
    memory_required: int = 0,
    minimum_memory_required: int | None = None,
    force_full_load: bool = False,
    device: str | None = None,
) -> int | None:
    """Bytes of one model's weights that may be on its device, those already there included.

    `free_bytes` is free now, `loaded_bytes` of it hold this model's weights already and count as
    free. None: as many as it has. `device` is where the model computes, if not the machine's own.
    """
    state = vram_state(machine, options)
    if device_type(device) == "cpu" or state is VRAMState.DISABLED:
        return None
    if state is VRAMState.NO_VRAM:
        return 0
    partial = state in (VRAMState.LOW_VRAM, VRAMState.NORMAL_VRAM)
    if force_full_load or not partial or not lowvram_available(machine, options):
        return None
    wanted = memory_required if minimum_memory_required is None else minimum_memory_required
    free = free_bytes + loaded_bytes
    after_computing = free - memory_for_computing(machine, options, wanted)
    at_least = int(free * minimum_weight_ratio(machine, options))
    return max(0, after_computing, min(at_least, free - minimum_inference_memory(machine, options)))


def maximum_pinned_memory(machine: Machine, options: Options) -> int:
    """Bytes of RAM that may be pinned; 0 where that does not help or is disabled."""
    kind = in_use(machine, options).kind
    if options.disable_pinned_memory or kind not in ("cuda", "rocm"):
        return 0
    part = _PINNED_OF_RAM_WINDOWS if machine.windows else _PINNED_OF_RAM
    return int(machine.ram_total_bytes * part)


def offload_streams(machine: Machine, options: Options) -> int:
    """How many streams copy weights; 0 for none."""
    if options.disable_async_offload:
        return 0
    if options.async_offload is not None:
        return options.async_offload
    return _STREAMS_NVIDIA if in_use(machine, options).kind == "cuda" else 0


def supports_non_blocking(machine: Machine, options: Options, device: str | None = None) -> bool:
    """Whether copies to `device` may be non-blocking: not where that is known to fail."""
    if options.force_non_blocking:
        return True
    if device_type(device) == "mps" or options.deterministic:
        return False
    return in_use(machine, options).kind not in ("xpu", "directml")
