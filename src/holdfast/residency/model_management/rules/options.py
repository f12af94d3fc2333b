"""The command-line options of model management as one frozen value, consistent by construction.

Spelled as in the specification; ComfyUI's `--fp8_e4m3fn-unet` and the like work as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import BadInput

GIB = 2**30
FAST = ("fp16_accumulation",)


def _one_of(group: str, help: str) -> Any:
    """A flag; those of one group exclude each other."""
    return dataclasses.field(default=False, metadata={"group": group, "help": help})


_vram = functools.partial(_one_of, "vram")
_force = functools.partial(_one_of, "force")
_unet = functools.partial(_one_of, "unet")
_vae = functools.partial(_one_of, "vae")
_text_enc = functools.partial(_one_of, "text_enc")
_attention = functools.partial(_one_of, "attention")
_upcast = functools.partial(_one_of, "upcast")
_alone = functools.partial(_one_of, "")  # excludes nothing
# Further exclusions, of options that take a value.
_CONFLICTS = (("async_offload", "disable_async_offload"), ("directml", "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the user. Raises BadInput for invalid values and contradictory options."""

    gpu_only: bool = _vram("keep and run everything on the GPU, text encoders and VAE too")
    highvram: bool = _vram("keep models on the GPU when they have run")
    normalvram: bool = _vram(
        "load models whole where they fit, in part where they do not (the default)"
    )
    lowvram: bool = _vram("keep only a part of each model on the GPU")
    novram: bool = _vram("keep nothing on the GPU between uses, when --lowvram is not enough")
    cpu: bool = _vram("run everything on the CPU")
    force_fp32: bool = _force("compute with fp32 whatever the device can do")
    force_fp16: bool = _force("compute with fp16 whatever the device can do")
    fp32_unet: bool = _unet("run the diffusion model in fp32")
    fp64_unet: bool = _unet("run the diffusion model in fp64")
    bf16_unet: bool = _unet("run the diffusion model in bf16")
    fp16_unet: bool = _unet("run the diffusion model in fp16")
    fp8_e4m3fn_unet: bool = _unet("keep the diffusion model's weights in fp8 (e4m3fn)")
    fp8_e5m2_unet: bool = _unet("keep the diffusion model's weights in fp8 (e5m2)")
    fp8_e8m0fnu_unet: bool = _unet("keep the diffusion model's weights in fp8 (e8m0fnu)")
    fp16_vae: bool = _vae("run the VAE in fp16 (black images with some)")
    fp32_vae: bool = _vae("run the VAE in fp32")
    bf16_vae: bool = _vae("run the VAE in bf16")
    fp8_e4m3fn_text_enc: bool = _text_enc("keep the text encoder's weights in fp8 (e4m3fn)")
    fp8_e5m2_text_enc: bool = _text_enc("keep the text encoder's weights in fp8 (e5m2)")
    fp16_text_enc: bool = _text_enc("keep the text encoder's weights in fp16")
    fp32_text_enc: bool = _text_enc("keep the text encoder's weights in fp32")
    bf16_text_enc: bool = _text_enc("keep the text encoder's weights in bf16")
    use_split_cross_attention: bool = _attention("split attention; not used where xformers is")
    use_quad_cross_attention: bool = _attention(
        "sub-quadratic attention; not used where xformers is"
    )
    use_pytorch_cross_attention: bool = _attention(
        "PyTorch's own attention, even where xformers is installed"
    )
    use_sage_attention: bool = _attention("SageAttention (package sageattention)")
    use_flash_attention: bool = _attention("FlashAttention (package flash-attn)")
    force_upcast_attention: bool = _upcast("compute attention in fp32 where weights are fp16")
    dont_upcast_attention: bool = _upcast(
        "never compute attention in more than the weights' precision"
    )
    cpu_vae: bool = _alone("run the VAE on the CPU")
    disable_xformers: bool = _alone("do not use xformers")
    supports_fp8_compute: bool = _alone("act as if the device computes with fp8")
    disable_smart_memory: bool = _alone("move models off the GPU as soon as another one is loaded")
    disable_pinned_memory: bool = _alone("do not lock weights into RAM")
    force_non_blocking: bool = _alone("copy without waiting, even where that is known to go wrong")
    deterministic: bool = _alone("prefer algorithms that give the same result every time")
    disable_async_offload: bool = False
    directml: int | None = None
    """Index of a DirectML device; -1 for DirectML's default; None for no DirectML."""
    reserve_vram: float | None = None
    """GiB of device memory left to other programs; None for the system's default."""
    async_offload: int | None = None
    """How many streams copy weights; None for the platform's default."""
    fast: tuple[str, ...] = ()
    """Which of `FAST` to use."""

    def __post_init__(self) -> None:
        for row in (*_exclusive_rows(), *_CONFLICTS):
            given = [name for name in row if _is_set(getattr(self, name))]
            if len(given) > 1:
                raise BadInput(
                    f"cannot use {flag(given[0])} together with {flag(given[1])}",
                    expected=f"one of {', '.join(flag(name) for name in row)}",
                    hint=f"leave out {flag(given[1])}",
                )
        for name, low, expected in (
            ("reserve_vram", 0, "a number of GB, 0 or more"),
            ("async_offload", 0, "a number of streams, 0 or more"),
            ("directml", -1, "the number of a DirectML device, or no number for the default one"),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise BadInput(f"cannot use {flag(name)} {value}", expected=expected)
        for word in self.fast:
            if word not in FAST:
                raise BadInput(f"cannot use --fast {word}", expected=f"one of {', '.join(FAST)}")

    @property
    def reserve_vram_bytes(self) -> int | None:
        """`--reserve-vram` in bytes."""
        return None if self.reserve_vram is None else int(self.reserve_vram * GIB)


@functools.cache
def _groups() -> dict[str, dict[str, str]]:
    """Group to flags with their help texts."""
    groups: dict[str, dict[str, str]] = {}
    for one in dataclasses.fields(Options):
        if one.metadata:
            groups.setdefault(one.metadata["group"], {})[one.name] = one.metadata["help"]
    return groups


def _exclusive_rows() -> list[dict[str, str]]:
    return [row for group, row in _groups().items() if group]


def _is_set(value: object) -> bool:
    return value is not None and value is not False  # 0 is a value


def flag(field: str) -> str:
    """The command-line flag of a field of Options."""
    return "--" + field.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options to `parser` in one group, with exclusions."""
    group: Any = parser.add_argument_group("models and device memory")
    for row in _exclusive_rows():
        exclusive = group.add_mutually_exclusive_group()
        for field, text in row.items():
            # ComfyUI keeps an underscore in the name of a dtype.
            names = dict.fromkeys((flag(field), flag(field).replace("fp8-e", "fp8_e")))
            exclusive.add_argument(*names, dest=field, action="store_true", help=text)
    for field, text in _groups()[""].items():
        group.add_argument(flag(field), dest=field, action="store_true", help=text)
    offload = group.add_mutually_exclusive_group()
    text = "copy weights on N streams (default on NVIDIA: 2)"
    offload.add_argument("--async-offload", type=int, nargs="?", const=2, metavar="N", help=text)
    text = "copy weights on no stream of its own"
    offload.add_argument("--disable-async-offload", action="store_true", help=text)
    text = "use torch-directml, device N"
    group.add_argument("--directml", type=int, nargs="?", const=-1, metavar="N", help=text)
    text = "leave N GB of the GPU's memory to other programs"
    group.add_argument("--reserve-vram", type=float, metavar="N", help=text)
    text = f"faster and a little less exact: {', '.join(FAST)} (all when none is named)"
    group.add_argument("--fast", nargs="*", default=(), metavar="NAME", help=text)


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
    """Parse the command line of a host such as ComfyUI. Raises BadInput, never exits."""
    parser = argparse.ArgumentParser(prog="", add_help=False, exit_on_error=False)
    add_arguments(parser)
    try:
        namespace, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as exc:
        raise BadInput(f"cannot read the options: {exc}") from exc
    if rest:
        raise BadInput(f"unknown option {rest[0]!r}", expected="an option of model management")
    return from_args(namespace)
