"""The specification's functions for this machine, with torch devices and dtypes.

`vram_state`, `cpu_state`, `total_vram`, `total_ram` and `lowvram_available` are attributes of this
module, computed at each access. Importing it does not touch the machine.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from holdfast.residency.model_management.rules import (
    attention,
    placing,
    precision,
    queries,
    reserve,
)
from holdfast.residency.model_management.rules.detect import this_system
from holdfast.residency.model_management.rules.machine import Kind, Machine, device_type, in_use
from holdfast.residency.model_management.rules.process import (
    given_machine,
    machine,
    options,
    running_as,
    set_machine,
    set_options,
)

# Names of other modules that are available here too.
__all__ = ["machine", "options", "running_as", "set_machine", "set_options"]

MIB = 2**20
_Result = TypeVar("_Result")
_LIVE: dict[str, Callable[[], Any]] = {
    "vram_state": lambda: reserve.vram_state(machine(), options()),
    "cpu_state": lambda: reserve.cpu_state(machine(), options()),
    "lowvram_available": lambda: reserve.lowvram_available(machine(), options()),
    "total_vram": lambda: get_total_memory() / MIB,
    "total_ram": lambda: machine().ram_total_bytes / MIB,
}


def __getattr__(name: str) -> Any:
    if name in _LIVE:
        return _LIVE[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The machine and its memory


def machine_of(device: Any) -> Machine:
    """The machine with `device` as its device, if that is of the same kind."""
    found = machine()
    if device is None or str(device) == found.device:
        return found
    same = device_type(str(device)) == device_type(found.device)
    return machine(str(device)) if same and ":" in str(device) else found


def machine_now(device: Any = None) -> Machine:
    """The machine with the memory that is free now."""
    found = machine_of(device)
    if given_machine() is not None:
        return found
    return dataclasses.replace(
        found,
        free_bytes=get_free_memory(torch.device(found.device)),
        ram_free_bytes=this_system().ram_free_bytes,
    )


def get_total_memory(dev: Any = None, torch_total_too: bool = False) -> Any:
    """Total bytes of a device (None: the default); with `torch_total_too`, torch's too."""
    found = _ask_memory(dev, queries.total, "total_bytes")
    return (found.device, found.torch) if torch_total_too else found.device


def get_free_memory(dev: Any = None, torch_free_too: bool = False) -> Any:
    """Free bytes of a device with torch's unused cache; with `torch_free_too`, that cache too."""
    found = _ask_memory(dev, queries.free, "free_bytes")
    return (found.device, found.torch) if torch_free_too else found.device


def _ask_memory(dev: Any, query: Callable[[Any, Any], queries.Bytes], field: str) -> queries.Bytes:
    device, given = get_torch_device() if dev is None else torch.device(dev), given_machine()
    if given is None:
        return query(torch, device)
    on_host = device.type in ("cpu", "mps")
    amount = getattr(given, f"ram_{field}" if on_host else field) or 0
    return queries.Bytes(amount, amount if on_host else 0)


def get_torch_device_name(device: Any) -> str:
    """The device as text: "cuda:0 NVIDIA H200", or its kind if it has no name."""
    name = machine_of(device).name
    kind = getattr(device, "type", None)
    if kind in ("cpu", "mps", "privateuseone") or name is None:
        return str(kind or device)
    return f"{device} {name}"


def is_device_type(device: Any, type: str) -> bool:
    """Whether `device` is a torch device of that kind."""
    return getattr(device, "type", None) == type


is_device_cpu = functools.partial(is_device_type, type="cpu")
is_device_mps = functools.partial(is_device_type, type="mps")
is_device_xpu = functools.partial(is_device_type, type="xpu")
is_device_cuda = functools.partial(is_device_type, type="cuda")


def _computes(kind: Kind) -> bool:
    """Whether a device of this kind computes."""
    return in_use(machine(), options()).kind == kind


is_nvidia = functools.partial(_computes, "cuda")
is_amd = functools.partial(_computes, "rocm")
is_intel_xpu = functools.partial(_computes, "xpu")
is_ascend_npu = functools.partial(_computes, "npu")
is_mlu = functools.partial(_computes, "mlu")
is_directml_enabled = functools.partial(_computes, "directml")
cpu_mode = functools.partial(_computes, "cpu")
mps_mode = functools.partial(_computes, "mps")


# The rules, each for the machine and the options of this process


def _bind(
    rule: Callable[..., Any],
    returns: Callable[[Any], _Result],
    look: Callable[[Any], Machine] = machine_of,
) -> Callable[..., _Result]:
    """`rule` without its first two arguments, a machine and options; `returns` makes the result.

    Devices and dtypes are torch's. `look` finds the machine of the first device among the arguments
    (None where there is none).
    """
    signature = inspect.signature(rule)
    parameters = list(signature.parameters.values())[2:]
    device_at = next((i for i, p in enumerate(parameters) if p.name.endswith("device")), None)

    @functools.wraps(rule)
    def call(*args: Any, **kwargs: Any) -> _Result:
        device = None
        if device_at is not None:
            named = kwargs.get(parameters[device_at].name)
            device = args[device_at] if device_at < len(args) else named
        words = {name: _word(value) for name, value in kwargs.items()}
        return returns(rule(look(device), options(), *map(_word, args), **words))

    del call.__wrapped__
    call.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore
    return call


def _word(value: Any) -> Any:
    """Devices and dtypes, also in a list, by their names; anything else as it is."""
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value).removeprefix("torch.")
    return [_word(one) for one in value] if isinstance(value, (list, tuple)) else value


def _dtype(word: str) -> torch.dtype:
    return getattr(torch, word)


def _default_machine(device: Any) -> Machine:
    return machine()


def dtype_size(dtype: torch.dtype) -> int:
    """Bytes of one element."""
    return dtype.itemsize


def supports_dtype(device: Any, dtype: torch.dtype) -> bool:
    """Whether `device` can compute in `dtype` at all."""
    return precision.supports_dtype(_word(device), _word(dtype))


extra_reserved_memory = _bind(reserve.extra_reserved_memory, int)
minimum_inference_memory = _bind(reserve.minimum_inference_memory, int)
maximum_vram_for_weights = _bind(reserve.maximum_vram_for_weights, int)
device_supports_non_blocking = _bind(reserve.supports_non_blocking, bool, _default_machine)

should_use_fp16 = _bind(precision.should_use_fp16, bool)
should_use_bf16 = _bind(precision.should_use_bf16, bool)
supports_fp8_compute = _bind(precision.supports_fp8_compute, bool)
unet_dtype = _bind(precision.unet_dtype, _dtype)
unet_manual_cast = _bind(precision.unet_manual_cast, lambda word: word and _dtype(word))
text_encoder_dtype = _bind(precision.text_encoder_dtype, _dtype)
vae_dtype = _bind(precision.vae_dtype, _dtype)
supports_cast = _bind(precision.supports_cast, bool, _default_machine)
pick_weight_dtype = _bind(precision.pick_weight_dtype, _dtype, _default_machine)

get_torch_device = _bind(placing.torch_device, torch.device)
unet_offload_device = _bind(placing.unet_offload_device, torch.device)
unet_inital_load_device = _bind(placing.unet_inital_load_device, torch.device, machine_now)
text_encoder_device = _bind(placing.text_encoder_device, torch.device)
text_encoder_offload_device = _bind(placing.intermediate_device, torch.device)
text_encoder_initial_device = _bind(placing.text_encoder_initial_device, torch.device, machine_now)
intermediate_device = _bind(placing.intermediate_device, torch.device)
vae_device = _bind(placing.vae_device, torch.device)
vae_offload_device = _bind(placing.intermediate_device, torch.device)

xformers_enabled = _bind(attention.xformers_enabled, bool)
xformers_enabled_vae = _bind(attention.xformers_enabled_vae, bool)
pytorch_attention_enabled = _bind(attention.pytorch_attention_enabled, bool)
pytorch_attention_enabled_vae = _bind(attention.pytorch_attention_enabled_vae, bool)
pytorch_attention_flash_attention = _bind(attention.pytorch_attention_flash_attention, bool)
force_upcast_attention_dtype = _bind(
    attention.force_upcast_attention_dtype,
    lambda words: words and {_dtype(k): _dtype(v) for k, v in words.items()},
)
chosen_attention = _bind(attention.choose_attention, str, _default_machine)
