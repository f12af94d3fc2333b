"""Chooses the attention implementation for models and VAEs.

Order: sage, xformers, flash, pytorch, split, sub_quad; the first that is enabled. A package that
was asked for and is not installed raises MissingDependency instead of being replaced silently.
"""

from __future__ import annotations

from typing import Literal

from holdfast.base.errors import MissingDependency
from holdfast.residency.model_management.rules.machine import Machine, device_type, in_use
from holdfast.residency.model_management.rules.options import Options

Attention = Literal["sage", "xformers", "flash", "pytorch", "split", "sub_quad"]

# AMD's own flash attention needs Triton and is compiled into torch for these.
_AMD_SINCE_TORCH_2_7 = ("gfx90a", "gfx942", "gfx1100", "gfx1101", "gfx1151")
_AMD_SINCE_ROCM_7 = ("gfx1201",)
_BLACK_IMAGES = "0.0.18"  # this xformers breaks large images in VAEs
_MACOS_NEEDS_UPCAST = (14, 5)


def choose_attention(machine: Machine, options: Options, device: str | None = None) -> Attention:
    """The implementation for a diffusion model on `device` (None: the machine's own)."""
    if device_type(device) == "cpu" and in_use(machine, options).kind != "cpu":
        return "sub_quad"
    _require(machine, options)
    if options.use_sage_attention:
        return "sage"
    if xformers_enabled(machine, options):
        return "xformers"
    if options.use_flash_attention:
        return "flash"
    if pytorch_attention_enabled(machine, options):
        return "pytorch"
    return "split" if options.use_split_cross_attention else "sub_quad"


def choose_attention_vae(machine: Machine, options: Options) -> Attention:
    """The implementation for a VAE."""
    if xformers_enabled_vae(machine, options):
        return "xformers"
    return "pytorch" if pytorch_attention_enabled_vae(machine, options) else "split"


def _require(machine: Machine, options: Options) -> None:
    wanted = (
        (options.use_sage_attention, "--use-sage-attention", "sageattention", "sageattention"),
        (options.use_flash_attention, "--use-flash-attention", "flash_attn", "flash-attn"),
    )
    for asked, flag, module, package in wanted:
        if asked and module not in machine.packages:
            raise MissingDependency(
                f"cannot use {flag}: the package {module!r} cannot be imported",
                expected=f"an installation of {package} that works with this torch",
                hint=f"pip install {package}, or leave out {flag}",
            )


def xformers_enabled(machine: Machine, options: Options) -> bool:
    """Whether xformers computes attention: on NVIDIA and AMD, unless options say otherwise."""
    if options.disable_xformers or options.use_pytorch_cross_attention:
        return False
    return in_use(machine, options).kind in ("cuda", "rocm") and "xformers" in machine.packages


def xformers_enabled_vae(machine: Machine, options: Options) -> bool:
    """The same for VAEs, where one version of xformers gives black images."""
    broken = (machine.xformers_version or "").startswith(_BLACK_IMAGES)
    return xformers_enabled(machine, options) and not broken


def pytorch_attention_enabled(machine: Machine, options: Options) -> bool:
    """Whether to use torch's own attention: asked for, or known to be good here."""
    if options.use_pytorch_cross_attention:
        return True
    if options.use_split_cross_attention or options.use_quad_cross_attention:
        return False
    kind = in_use(machine, options).kind
    if kind == "cuda":
        return machine.torch_version >= (2, 0)
    if kind == "rocm":
        return _amd_has_attention(machine)
    return kind in ("xpu", "npu", "mlu")


def _amd_has_attention(machine: Machine) -> bool:
    arch = machine.arch or ""
    if "triton" not in machine.packages:
        return False
    if machine.torch_version >= (2, 7) and any(a in arch for a in _AMD_SINCE_TORCH_2_7):
        return True
    rocm = machine.rocm_version or (0, 0)
    return rocm >= (7, 0) and any(a in arch for a in _AMD_SINCE_ROCM_7)


def pytorch_attention_enabled_vae(machine: Machine, options: Options) -> bool:
    """The same for VAEs; not on AMD, where large images crash it."""
    if in_use(machine, options).kind == "rocm":
        return False
    return pytorch_attention_enabled(machine, options)


def pytorch_attention_flash_attention(machine: Machine, options: Options) -> bool:
    """Whether torch's attention needs little memory here (flash or memory-efficient)."""
    kind = in_use(machine, options).kind
    accelerated = kind in ("cuda", "rocm", "xpu", "npu", "mlu")
    return accelerated and pytorch_attention_enabled(machine, options)


def force_upcast_attention_dtype(machine: Machine, options: Options) -> dict[str, str] | None:
    """Dtypes in which attention must not be computed (fp16 on macOS), and what to use instead."""
    if options.dont_upcast_attention:
        return None
    mac = machine.macos is not None and machine.macos >= _MACOS_NEEDS_UPCAST
    return {"float16": "float32"} if mac or options.force_upcast_attention else None
