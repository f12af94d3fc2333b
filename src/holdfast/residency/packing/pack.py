"""The interface of lossless packing: pack, unpack, and the decoder of each device.

bf16 shrinks to about 0.68 of its bytes ("ranked") or 0.75 ("flat"), fp16 to about 0.87. Unpacking
restores every bit, whatever the bits are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from holdfast.base.errors import BadInput
from holdfast.base.interrupts import is_interrupt
from holdfast.residency.packing import codec_torch
from holdfast.residency.packing.layouts import SCHEMES, TILE, Layout, decide

__all__ = ["Decoder", "Layout", "decoder", "is_packable", "kind_of", "pack", "unpack"]

_KINDS = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_ALIGN = 16


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a device unpacks: `way` is "triton" or "torch", `reason` why it is not Triton.

    `schemes` are those that the device decodes fast enough to gain from them.
    """

    way: str
    schemes: tuple[str, ...]
    reason: str | None = None


def is_packable(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can be packed."""
    return dtype in _KINDS


def kind_of(dtype: torch.dtype) -> str | None:
    """The `kind` argument of pack() for this dtype; None if it cannot be packed."""
    return _KINDS.get(dtype)


def pack(
    raw: torch.Tensor, kind: str, *, schemes: Sequence[str] | None = None
) -> tuple[Layout, torch.Tensor] | None:
    """Pack weights: the layout and the payload (1-D uint8, on the device of `raw`).

    None if it would save less than 10 %; a few thousand weights never save that. `raw` holds the
    bytes of the weights: 1-D, uint8, contiguous. If another device will decode, pass its schemes
    (`decoder(device).schemes`). Copies counts to the host, so it waits for the device. Works in
    slices of at most 4 million weights, so temporary memory does not grow with the tensor.
    Raises BadInput for another `raw`, `kind` or scheme.
    """
    words = _words(raw, kind)
    allowed = decoder(raw.device).schemes if schemes is None else _check_schemes(schemes)
    decided = decide(codec_torch.histogram(words, kind), kind, allowed)
    if decided is None:
        return None
    layout, book = decided
    return layout, codec_torch.encode(words, layout, book)


def unpack(payload: torch.Tensor, layout: Layout, target: torch.Tensor) -> None:
    """Write the weights' bytes into `target`, queued on the current stream.

    Both are 1-D uint8 on one device. `payload` is aligned to 16 bytes and has at least
    `layout.nbytes`; `target` is aligned to 2 and has exactly `layout.raw_bytes`. Does not wait for
    the device; only the first decoder() of a device does, so call that before queueing ahead. (An
    unusual size may compile the kernel once more: unpack once before capturing a graph.)
    Raises BadInput before anything is written if the tensors are different.
    """
    _check_unpack(payload, layout, target)
    if decoder(target.device).way == "triton":
        _triton().decode(payload, layout, target)
    else:
        codec_torch.decode(payload, layout, target)


def scratch_bytes(layout: Layout, device: torch.device | str | None = None) -> int:
    """An upper bound of the temporary bytes of unpack(): 0 with Triton; None: torch's decoder."""
    if device is not None and decoder(device).way == "triton":
        return 0
    return codec_torch.scratch_bytes(layout)


def decoder(device: torch.device | str) -> Decoder:
    """How `device` unpacks. The first call for a GPU compiles and tests the kernels there."""
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
    except Exception as exc:  # Triton needs a C compiler, a known driver and more
        if is_interrupt(exc):
            raise
        reason = f"Triton cannot run here: {type(exc).__name__}: {exc}"
    return Decoder("torch", ("flat",), reason)


def _try_triton(device: torch.device) -> bool:
    """Compile the kernels for `device`; whether they give the right bits."""
    weights = torch.arange(16 * TILE, device=device).mul(0.37).sin_().mul_(0.02)
    weights[::1000] = 1e4
    weights[1::1000] = 1e-30  # one of the two is an escape
    spread = weights * torch.arange(16 * TILE, device=device).remainder_(9).exp2()
    for values, scheme in (
        (weights.bfloat16(), "flat"),
        (weights.bfloat16(), "ranked"),
        (spread.bfloat16(), "ranked"),
        (weights.half(), "ranked"),
    ):
        raw = values.view(torch.uint8)
        packed = pack(raw, _KINDS[values.dtype], schemes=(scheme,))
        if packed is None:
            return False
        target = torch.zeros_like(raw)
        _triton().decode(packed[1], packed[0], target)
        if not torch.equal(raw, target):
            return False
    return True


def _triton() -> Any:
    from holdfast.residency.packing import codec_triton

    return codec_triton


def _check_schemes(schemes: Sequence[str]) -> Sequence[str]:
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
            f"cannot pack {_describe(raw)} as {kind}",
            expected="contiguous uint8 of one dimension, two for each weight",
            hint="weight.detach().contiguous().view(-1).view(torch.uint8)",
        )
    if raw.data_ptr() % 2 or raw.storage_offset() % 2:
        raw = raw.clone()
    return raw.view(torch.int16)


def _check_unpack(payload: torch.Tensor, layout: Layout, target: torch.Tensor) -> None:
    if not _is_bytes(payload) or payload.numel() < layout.nbytes:
        raise BadInput(
            f"cannot unpack {_describe(payload)}",
            expected=f"a payload of {layout.nbytes} bytes: contiguous uint8 of one dimension",
        )
    if not _is_bytes(target) or target.numel() != layout.raw_bytes:
        raise BadInput(
            f"cannot unpack into {_describe(target)}",
            expected=f"{layout.raw_bytes} bytes: contiguous uint8 of one dimension",
        )
    if payload.device != target.device:
        raise BadInput(
            f"cannot unpack a payload on {payload.device} into a target on {target.device}",
            expected="both on one device",
            hint="copy the payload there first: it is the smaller one",
        )
    unaligned = (
        one.storage_offset() % step or one.data_ptr() % step
        for one, step in ((payload, _ALIGN), (target, 2))
    )
    if any(unaligned):
        raise BadInput(
            "cannot unpack: the payload or the target begins at an unaligned byte",
            expected=f"the payload at a multiple of {_ALIGN} bytes, the target at one of 2",
        )


def _is_bytes(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.is_contiguous()


def _describe(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return f"a tensor of {name} with the shape {tuple(tensor.shape)}"
