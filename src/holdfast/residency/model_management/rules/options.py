"""The command-line options of model management as one frozen value, consistent by construction.

Spelled as in the specification; ComfyUI's `--fp8_e4m3fn-unet` and the like work as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import BadInput

GIB = 2**30
FAST = ("fp16_accumulation",)

# Options of a row exclude each other. Values are argparse help texts.
_EXCLUSIVE: tuple[dict[str, str], ...] = (
    {
        "gpu_only": "keep and run everything on the GPU, text encoders and VAE too",
        "highvram": "keep models on the GPU when they have run",
        "normalvram": "load models whole where they fit, in part where they do not (the default)",
        "lowvram": "keep only a part of each model on the GPU",
        "novram": "keep nothing on the GPU between uses, when --lowvram is not enough",
        "cpu": "run everything on the CPU",
    },
    {
        "force_fp32": "compute with fp32 whatever the device can do",
        "force_fp16": "compute with fp16 whatever the device can do",
    },
    {
        "fp32_unet": "run the diffusion model in fp32",
        "fp64_unet": "run the diffusion model in fp64",
        "bf16_unet": "run the diffusion model in bf16",
        "fp16_unet": "run the diffusion model in fp16",
        "fp8_e4m3fn_unet": "keep the diffusion model's weights in fp8 (e4m3fn)",
        "fp8_e5m2_unet": "keep the diffusion model's weights in fp8 (e5m2)",
        "fp8_e8m0fnu_unet": "keep the diffusion model's weights in fp8 (e8m0fnu)",
    },
    {
        "fp16_vae": "run the VAE in fp16 (black images with some)",
        "fp32_vae": "run the VAE in fp32",
        "bf16_vae": "run the VAE in bf16",
    },
    {
        "fp8_e4m3fn_text_enc": "keep the text encoder's weights in fp8 (e4m3fn)",
        "fp8_e5m2_text_enc": "keep the text encoder's weights in fp8 (e5m2)",
        "fp16_text_enc": "keep the text encoder's weights in fp16",
        "fp32_text_enc": "keep the text encoder's weights in fp32",
        "bf16_text_enc": "keep the text encoder's weights in bf16",
    },
    {
        "use_split_cross_attention": "split attention; not used where xformers is",
        "use_quad_cross_attention": "sub-quadratic attention; not used where xformers is",
        "use_pytorch_cross_attention": "PyTorch's own attention, even where xformers is installed",
        "use_sage_attention": "SageAttention (package sageattention)",
        "use_flash_attention": "FlashAttention (package flash-attn)",
    },
    {
        "force_upcast_attention": "compute attention in fp32 where weights are fp16",
        "dont_upcast_attention": "never compute attention in more than the weights' precision",
    },
)
_ALONE = {
    "cpu_vae": "run the VAE on the CPU",
    "disable_xformers": "do not use xformers",
    "supports_fp8_compute": "act as if the device computes with fp8",
    "disable_smart_memory": "move models off the GPU as soon as another one is loaded",
    "disable_pinned_memory": "do not lock weights into RAM",
    "force_non_blocking": "copy without waiting, even where that is known to go wrong",
    "deterministic": "prefer algorithms that give the same result every time",
}
# Further exclusions, of options that take a value.
_CONFLICTS = (("async_offload", "disable_async_offload"), ("directml", "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the user. Raises BadInput for invalid values and contradictory options."""

    cpu: bool = False
    lowvram: bool = False
    novram: bool = False
    normalvram: bool = False
    highvram: bool = False
    gpu_only: bool = False
    force_fp16: bool = False
    force_fp32: bool = False
    fp16_unet: bool = False
    fp32_unet: bool = False
    fp64_unet: bool = False
    bf16_unet: bool = False
    fp8_e4m3fn_unet: bool = False
    fp8_e5m2_unet: bool = False
    fp8_e8m0fnu_unet: bool = False
    fp16_vae: bool = False
    fp32_vae: bool = False
    bf16_vae: bool = False
    cpu_vae: bool = False
    fp8_e4m3fn_text_enc: bool = False
    fp8_e5m2_text_enc: bool = False
    fp16_text_enc: bool = False
    fp32_text_enc: bool = False
    bf16_text_enc: bool = False
    use_split_cross_attention: bool = False
    use_quad_cross_attention: bool = False
    use_pytorch_cross_attention: bool = False
    use_sage_attention: bool = False
    use_flash_attention: bool = False
    disable_xformers: bool = False
    force_upcast_attention: bool = False
    dont_upcast_attention: bool = False
    supports_fp8_compute: bool = False
    disable_smart_memory: bool = False
    disable_pinned_memory: bool = False
    disable_async_offload: bool = False
    force_non_blocking: bool = False
    deterministic: bool = False
    directml: int | None = None
    """Index of a DirectML device; -1 for DirectML's default; None for no DirectML."""
    reserve_vram: float | None = None
    """GiB of device memory left to other programs; None for the system's default."""
    async_offload: int | None = None
    """How many streams copy weights; None for the platform's default."""
    fast: tuple[str, ...] = ()
    """Which of `FAST` to use."""

    def __post_init__(self) -> None:
        for row in (*_EXCLUSIVE, *_CONFLICTS):
            given = [name for name in row if _is_set(getattr(self, name))]
            if len(given) > 1:
                raise BadInput(
                    f"cannot use {flag(given[0])} together with {flag(given[1])}",
                    expected=f"one of {', '.join(flag(name) for name in row)}",
                    hint=f"leave out {flag(given[1])}",
                )
        self._check_ranges()
        for word in self.fast:
            if word not in FAST:
                raise BadInput(f"cannot use --fast {word}", expected=f"one of {', '.join(FAST)}")

    def _check_ranges(self) -> None:
        reserve = self.reserve_vram
        if reserve is not None and not 0 <= reserve < math.inf:
            raise BadInput(
                f"cannot use --reserve-vram {reserve}", expected="a number of GB, 0 or more"
            )
        if self.async_offload is not None and self.async_offload < 0:
            raise BadInput(
                f"cannot use --async-offload {self.async_offload}",
                expected="a number of streams, 0 or more",
            )
        if self.directml is not None and self.directml < -1:
            raise BadInput(
                f"cannot use --directml {self.directml}",
                expected="the number of a DirectML device, or no number for the default one",
            )

    @property
    def reserve_vram_bytes(self) -> int | None:
        """`--reserve-vram` in bytes."""
        return None if self.reserve_vram is None else int(self.reserve_vram * GIB)


def _is_set(value: object) -> bool:
    return value is not None and value is not False  # 0 is a value


def flag(field: str) -> str:
    """The command-line flag of a field of Options."""
    return "--" + field.replace("_", "-")


def _spellings(field: str) -> list[str]:
    """Our spelling, then ComfyUI's if that keeps an underscore in the name of a dtype."""
    ours = flag(field)
    theirs = ours.replace("fp8-e", "fp8_e")
    return [ours] if theirs == ours else [ours, theirs]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options to `parser` in one group, with exclusions."""
    group: Any = parser.add_argument_group("models and device memory")
    for row in _EXCLUSIVE:
        exclusive = group.add_mutually_exclusive_group()
        for field, text in row.items():
            exclusive.add_argument(*_spellings(field), dest=field, action="store_true", help=text)
    for field, text in _ALONE.items():
        group.add_argument(flag(field), dest=field, action="store_true", help=text)
    _add_offload(group.add_mutually_exclusive_group())
    _add_numbers(group)


def _add_numbers(group: Any) -> None:
    text = "use torch-directml, device N"
    group.add_argument("--directml", type=int, nargs="?", const=-1, metavar="N", help=text)
    text = "leave N GB of the GPU's memory to other programs"
    group.add_argument("--reserve-vram", type=float, metavar="N", help=text)
    text = f"faster and a little less exact: {', '.join(FAST)} (all when none is named)"
    group.add_argument("--fast", nargs="*", default=(), metavar="NAME", help=text)


def _add_offload(group: Any) -> None:
    text = "copy weights on N streams (default on NVIDIA: 2)"
    group.add_argument("--async-offload", type=int, nargs="?", const=2, metavar="N", help=text)
    group.add_argument(
        "--disable-async-offload", action="store_true", help="copy weights on no stream of its own"
    )


def from_args(namespace: argparse.Namespace) -> Options:
    """Options from a parsed command line; missing ones keep their defaults."""
    values = {
        field.name: getattr(namespace, field.name)
        for field in dataclasses.fields(Options)
        if hasattr(namespace, field.name)
    }
    if isinstance(values.get("fast"), list):
        values["fast"] = tuple(values["fast"]) or FAST
    return Options(**values)


def parse(arguments: Sequence[str]) -> Options:
    """Parse command-line arguments. Raises BadInput where argparse would exit.

    For hosts with their own command line, such as a ComfyUI pack.
    """
    parser = argparse.ArgumentParser(prog="", add_help=False, exit_on_error=False)
    add_arguments(parser)
    try:
        namespace, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as exc:
        raise BadInput(f"cannot read the options: {exc}") from exc
    if rest:
        raise BadInput(f"unknown option {rest[0]!r}", expected="an option of model management")
    return from_args(namespace)
