"""Make bf16 and fp16 weights smaller for the link, without losing a bit.

bf16 shrinks to about 0.68 of its bytes ("ranked") or 0.75 ("flat"), fp16 to about 0.87.
Covers: the calls that others use, their checks, which decoder a device gets.
Leaves to others: the format (pack_layout), the work (pack_torch, pack_triton).
Promise: unpack(*pack(x)) is x, bit for bit, whatever the bits are; or pack() says None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from holdfast.base.errors import BadInput
from holdfast.base.interrupts import is_interrupt
from holdfast.residency.packing import pack_torch
from holdfast.residency.packing.pack_layout import SCHEMES, TILE, Layout, decide

__all__ = [
    "Decoder",
    "Layout",
    "decoder",
    "kind_of",
    "pack",
    "packable",
    "scratch_bytes",
    "unpack",
]

_KINDS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_ALIGN = 16


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a device unpacks: `way` is "triton" or "torch"; `reason` says why it is not Triton.

    `schemes` are those that decode fast enough there to be worth it.
    """

    way: str
    schemes: tuple[str, ...]
    reason: str | None = None


def packable(dtype: torch.dtype) -> bool:
    """Whether weights of this type can be packed at all."""
    return dtype in _KINDS


def kind_of(dtype: torch.dtype) -> str | None:
    """The `kind` that pack() wants for weights of this type; None if they cannot be packed."""
    return _KINDS.get(dtype)


def pack(
    raw: torch.Tensor, kind: str, *, schemes: Sequence[str] | None = None
) -> tuple[Layout, torch.Tensor] | None:
    """The layout and the payload (1-D uint8, on the device of `raw`), or None if not worth it.

    `raw` holds the bytes of the weights: 1-D, uint8, contiguous. Worth it means at least 10 %
    saved; a few thousand weights never do. `schemes` limits how: give those of the device that
    will decode (`decoder(device).schemes`) if that is not the device of `raw`. Reads counts back
    to the host, so it waits for the device. Works by slices of 4 million weights at most, so the
    memory it takes for a moment does not grow with the tensor.
    Raises BadInput if `raw` or `kind` is not as said.
    """
    words = _words(raw, kind)
    allowed = decoder(raw.device).schemes if schemes is None else _checked(schemes)
    decided = decide(pack_torch.histogram(words, kind), kind, allowed)
    if decided is None:
        return None
    layout, book = decided
    return layout, pack_torch.encode(words, layout, book)


def unpack(payload: torch.Tensor, layout: Layout, target: torch.Tensor) -> None:
    """Write the weights' bytes into `target`, queued on the current stream.

    Both are 1-D uint8 on one device; `payload` begins at a multiple of 16 bytes and has
    `layout.nbytes` at least, `target` begins at a multiple of 2 and has exactly
    `layout.raw_bytes`. Does not wait for the device and reads nothing back; only the first use of
    a device's decoder() does, so call that before queueing ahead. (A tensor of an odd size may
    still have the kernel compiled once more: unpack before capturing a graph.)
    Raises BadInput, before anything is written, if the tensors are not as said.
    """
    _check_unpack(payload, layout, target)
    if decoder(target.device).way == "triton":
        _triton().decode(payload, layout, target)
    else:
        pack_torch.decode(payload, layout, target)


def scratch_bytes(layout: Layout, device: torch.device | str | None = None) -> int:
    """Device memory that unpack() takes for a moment, in bytes, at most.

    0 where `device` decodes with Triton; without a device, what the torch way takes.
    """
    if device is not None and decoder(device).way == "triton":
        return 0
    return pack_torch.scratch_bytes(layout)


def decoder(device: torch.device | str) -> Decoder:
    """How `device` unpacks. The first call for a GPU compiles the kernels and tries them there."""
    return _decoder(torch.device(device))


@cache
def _decoder(device: torch.device) -> Decoder:
    if device.type != "cuda":
        return Decoder("torch", ("flat",), f"Triton is used on cuda devices, not on {device.type}")
    try:
        if _try_triton(device):
            return Decoder("triton", SCHEMES)
        reason = "Triton's kernels gave wrong bits on this device"
    except ImportError as exc:
        reason = f"Triton cannot be imported: {exc}"
    except Exception as exc:  # Triton needs a C compiler, a driver it knows and more of the like
        if is_interrupt(exc):
            raise
        reason = f"Triton cannot run here: {type(exc).__name__}: {exc}"
    return Decoder("torch", ("flat",), reason)


def _try_triton(device: torch.device) -> bool:
    """Whether the kernels give the right bits on `device`; they are compiled by this, too."""
    weights = torch.arange(16 * TILE, device=device).mul(0.37).sin_().mul_(0.02)
    weights[::1000] = 1e4
    weights[1::1000] = 1e-30  # one of the two is an escape
    spread = weights * torch.arange(16 * TILE, device=device).remainder_(9).exp2()
    return (
        _comes_back(weights.bfloat16(), "flat")
        and _comes_back(weights.bfloat16(), "ranked")
        and _comes_back(spread.bfloat16(), "ranked")
        and _comes_back(weights.half(), "ranked")
    )


def _comes_back(weights: torch.Tensor, scheme: str) -> bool:
    raw = weights.view(torch.uint8)
    packed = pack(raw, _KINDS[weights.dtype], schemes=(scheme,))
    if packed is None:
        return False
    target = torch.zeros_like(raw)
    _triton().decode(packed[1], packed[0], target)
    return torch.equal(raw, target)


def _triton() -> Any:
    from holdfast.residency.packing import pack_triton

    return pack_triton


def _checked(schemes: Sequence[str]) -> Sequence[str]:
    unknown = [scheme for scheme in schemes if scheme not in SCHEMES]
    if unknown or isinstance(schemes, str):
        raise BadInput(
            f"cannot pack with the schemes {schemes!r}",
            expected=f"a sequence of some of {', '.join(SCHEMES)}",
        )
    return schemes


def _words(raw: torch.Tensor, kind: str) -> torch.Tensor:
    if kind not in _KINDS.values():
        raise BadInput(
            f"cannot pack weights of the kind {kind!r}",
            expected=f"one of {', '.join(_KINDS.values())}",
        )
    if not _is_bytes(raw) or raw.numel() % 2:
        raise BadInput(
            f"cannot pack {_described(raw)} as {kind}",
            expected="contiguous uint8 of one dimension, two for each weight",
            hint="weight.detach().contiguous().view(-1).view(torch.uint8)",
        )
    if raw.data_ptr() % 2 or raw.storage_offset() % 2:
        raw = raw.clone()
    return raw.view(torch.int16)


def _check_unpack(payload: torch.Tensor, layout: Layout, target: torch.Tensor) -> None:
    if not _is_bytes(payload) or payload.numel() < layout.nbytes:
        raise BadInput(
            f"cannot unpack {_described(payload)}",
            expected=f"a payload of {layout.nbytes} bytes: contiguous uint8 of one dimension",
        )
    if not _is_bytes(target) or target.numel() != layout.raw_bytes:
        raise BadInput(
            f"cannot unpack into {_described(target)}",
            expected=f"{layout.raw_bytes} bytes: contiguous uint8 of one dimension",
        )
    if payload.device != target.device:
        raise BadInput(
            f"cannot unpack a payload on {payload.device} into a target on {target.device}",
            expected="both on one device",
            hint="copy the payload there first: it is the smaller one",
        )
    if payload.storage_offset() % _ALIGN or payload.data_ptr() % _ALIGN or _is_odd(target):
        raise BadInput(
            "cannot unpack: the payload or the target begins at an unaligned byte",
            expected=f"the payload at a multiple of {_ALIGN} bytes, the target at one of 2",
        )


def _is_bytes(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.is_contiguous()


def _is_odd(tensor: torch.Tensor) -> bool:
    return bool(tensor.storage_offset() % 2 or tensor.data_ptr() % 2)


def _described(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return f"a tensor of {name} with the shape {tuple(tensor.shape)}"
