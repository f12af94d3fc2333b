"""Which dtype a model's weights are kept in, and which one it computes with.

Pure functions in ComfyUI's order of checks. Dtypes are named as in torch ("float16") without
importing it; `current` has the same functions with torch objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.residency.model_management.rules.machine import Machine, device_type, in_use
from holdfast.residency.model_management.rules.options import Options
from holdfast.residency.model_management.rules.reserve import maximum_vram_for_weights

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
USUAL = ("float16", "bfloat16", "float32")
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2} | dict.fromkeys(FLOAT8, 1)

# RDNA 2 and older: bf16 works, but is slower than fp32.
_AMD_WITHOUT_BF16 = (
    *("gfx803", "gfx900", "gfx906"),
    *("gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031"),
)
_AMD_WITH_FP8 = ("gfx950", "gfx1200", "gfx1201")
# Pascal: fp16 works; on Linux fp32 is faster. Compared in lower case.
_NVIDIA_10_SERIES = (
    *("1050", "1060", "1070", "1080", "titan x", "p4", "p6", "p40", "p100"),
    *("p3000", "p3200", "p4000", "p4200", "p5000", "p5200", "p6000"),
)
# Turing without tensor cores: fp16 gives wrong images.
_NVIDIA_16_SERIES = (
    *("1630", "1650", "1660", "T500", "T550", "T600", "T1000", "T1200", "T2000"),
    *("MX450", "MX550", "CMP 30HX"),
)
_NONE: tuple[int, int] = (0, 0)
_UNKNOWN_AND_LARGE = 10**21  # more parameters than any model has


def should_use_fp16(
    machine: Machine,
    options: Options,
    device: str | None = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether such a model should be fp16; with `manual_cast` it computes in another dtype."""
    machine = in_use(machine, options)
    where = device_type(device)
    if where == "cpu":
        return False
    if options.force_fp16 or options.force_fp32:
        return options.force_fp16
    if where == "mps" or machine.kind in ("mps", "directml", "npu", "mlu", "rocm"):
        return True
    if machine.kind == "cpu":
        return False
    if machine.kind == "xpu":
        return machine.torch_version < (2, 3) or bool(machine.fp16)
    room = maximum_vram_for_weights(machine, options, device)
    tight = manual_cast and (not prioritize_performance or model_params * 4 > room)
    return _nvidia_uses_fp16(machine, manual_cast, tight)


def _nvidia_uses_fp16(machine: Machine, manual_cast: bool, tight: bool) -> bool:
    major, _ = machine.capability or _NONE
    name = machine.name or ""
    if major >= 8 or major < 6:
        return major >= 8
    if any(card in name.lower() for card in _NVIDIA_10_SERIES):
        return machine.windows or manual_cast
    if tight:
        return True
    return major >= 7 and not any(card in name for card in _NVIDIA_16_SERIES)


def should_use_bf16(
    machine: Machine,
    options: Options,
    device: str | None = None,
    model_params: int = 0,
    prioritize_performance: bool = True,
    manual_cast: bool = False,
) -> bool:
    """Whether a model of that many parameters should be bf16 on `device` (None: the machine's)."""
    machine = in_use(machine, options)
    where = device_type(device)
    if where == "cpu" or options.force_fp32 or machine.kind == "directml":
        return False
    if where == "mps" or machine.kind == "mps":
        return machine.macos is not None and machine.macos >= (14,)
    if machine.kind in ("cpu", "npu"):
        return machine.kind == "npu"
    if machine.kind == "xpu":
        return machine.torch_version < (2, 3) or bool(machine.bf16)
    if machine.kind == "rocm" and any(arch in (machine.arch or "") for arch in _AMD_WITHOUT_BF16):
        return manual_cast
    major, _ = machine.capability or _NONE
    if major >= 8 or (machine.kind == "mlu" and major > 3):
        return True
    if not machine.bf16 or not manual_cast:
        return False
    room = maximum_vram_for_weights(machine, options, device)
    return not prioritize_performance or model_params * 4 > room  # would not fit in fp32


def supports_fp8_compute(machine: Machine, options: Options, device: str | None = None) -> bool:
    """Whether the device multiplies fp8 matrices itself."""
    if options.supports_fp8_compute:
        return True
    machine = in_use(machine, options)
    if device_type(device) in ("cpu", "mps"):
        return False
    if machine.kind == "rocm":
        version = machine.rocm_version or _NONE
        new = machine.torch_version >= (2, 7) and version >= (6, 4)
        return new and any(arch in (machine.arch or "") for arch in _AMD_WITH_FP8)
    capability = machine.capability or _NONE
    if machine.kind != "cuda" or capability < (8, 9):
        return False
    if capability >= (9, 0):
        return True
    return machine.torch_version >= ((2, 4) if machine.windows else (2, 3))


def unet_dtype(
    machine: Machine,
    options: Options,
    device: str | None = None,
    model_params: int = 0,
    supported_dtypes: Sequence[str] = USUAL,
    weight_dtype: str | None = None,
) -> str:
    """The dtype to keep a diffusion model's weights in.

    `supported_dtypes` in the order the model prefers them; `weight_dtype` is what its file has;
    `model_params` below 0 means unknown and large.
    """
    forced = _find_forced(options, "unet")
    if forced is not None:
        return forced
    params = _UNKNOWN_AND_LARGE if model_params < 0 else model_params
    if weight_dtype in FLOAT8:
        room = maximum_vram_for_weights(machine, options, device)
        if supports_fp8_compute(machine, options, device) or params * 2 > room:
            return weight_dtype
    for wanted in _in_order(options, machine, supported_dtypes, weight_dtype):
        if _should_use(machine, options, wanted, device, params):
            return wanted
    for wanted in supported_dtypes:
        if _should_use(machine, options, wanted, device, params, manual_cast=True):
            return wanted
    return "float32"


def _in_order(
    options: Options, machine: Machine, supported: Sequence[str], weight_dtype: str | None
) -> list[str]:
    """The dtypes a model supports; fp16 first if the file has it or the user prefers it."""
    first = weight_dtype == "float16" or prefers_fp16(machine, options)
    return [d for d in supported if first and d == "float16"] + list(supported)


def _should_use(
    machine: Machine,
    options: Options,
    dtype: str,
    device: str | None,
    model_params: int = 0,
    manual_cast: bool = False,
) -> bool:
    rule = {"float16": should_use_fp16, "bfloat16": should_use_bf16}.get(dtype)
    if rule is None:
        return False
    return rule(machine, options, device=device, model_params=model_params, manual_cast=manual_cast)


def prefers_fp16(machine: Machine, options: Options) -> bool:
    """Whether `--fast fp16_accumulation` was set and the device supports it."""
    return "fp16_accumulation" in options.fast and in_use(machine, options).kind in ("cuda", "rocm")


def unet_manual_cast(
    machine: Machine,
    options: Options,
    weight_dtype: str,
    inference_device: str | None,
    supported_dtypes: Sequence[str] = USUAL,
) -> str | None:
    """The dtype to compute in when weights are kept in `weight_dtype`; None for the same."""
    if weight_dtype in ("float32", "float64"):
        return None
    fp16 = should_use_fp16(machine, options, device=inference_device, prioritize_performance=False)
    bf16 = should_use_bf16(machine, options, device=inference_device)
    if (fp16 and weight_dtype == "float16") or (bf16 and weight_dtype == "bfloat16"):
        return None
    fp16 = should_use_fp16(machine, options, device=inference_device)
    usable = {"float16": fp16, "bfloat16": bf16}
    for wanted in _in_order(options, machine, supported_dtypes, None):
        if usable.get(wanted):
            return wanted
    return "float32"


def text_encoder_dtype(machine: Machine, options: Options, device: str | None = None) -> str:
    """The dtype to keep a text encoder's weights in: fp16 by default, on every device."""
    return _find_forced(options, "text_enc") or "float16"


def vae_dtype(
    machine: Machine,
    options: Options,
    device: str | None = None,
    allowed_dtypes: Sequence[str] = (),
) -> str:
    """The dtype a VAE computes in: the first it allows that the device should use."""
    forced = _find_forced(options, "vae")
    if forced is not None:
        return forced
    usable = (d for d in allowed_dtypes if _should_use(machine, options, d, device))
    return next(usable, "float32")


def _find_forced(options: Options, part: str) -> str | None:
    """The dtype that `--fp16-unet` and similar options force."""
    words = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    words |= {name.replace("float8", "fp8"): name for name in FLOAT8}
    asked = (d for word, d in words.items() if getattr(options, f"{word}_{part}", False))
    return next(asked, None)


def supports_dtype(device: str | None, dtype: str) -> bool:
    """Whether `device` can compute in `dtype` at all: the CPU only in fp32."""
    if dtype == "float32":
        return True
    return device_type(device) != "cpu" and dtype in ("float16", "bfloat16")


def supports_cast(machine: Machine, options: Options, device: str | None, dtype: str) -> bool:
    """Whether weights of `dtype` can be cast on `device`."""
    if dtype in ("float32", "float16"):
        return True
    if in_use(machine, options).kind == "directml":
        return False
    if dtype == "bfloat16":
        return True
    return device_type(device) != "mps" and dtype in ("float8_e4m3fn", "float8_e5m2")


def pick_weight_dtype(
    machine: Machine,
    options: Options,
    dtype: str | None,
    fallback_dtype: str,
    device: str | None = None,
) -> str:
    """`dtype`, or the fallback if that is smaller or `dtype` cannot be cast on `device`."""
    if dtype is None or dtype_size(dtype) > dtype_size(fallback_dtype):
        return fallback_dtype
    return dtype if supports_cast(machine, options, device, dtype) else fallback_dtype


def dtype_size(dtype: str) -> int:
    """Bytes of one element; 4 for an unknown dtype."""
    return ITEM_BYTES.get(dtype, 4)
