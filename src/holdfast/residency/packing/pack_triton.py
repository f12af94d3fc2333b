"""Unpack 16-bit floats on a GPU: one pass over memory, and a small one for the escapes.

Covers: the kernels and their launch.
Leaves to others: checks, and what to do without Triton (pack).
Promise: launches only; no memory of its own, nothing read back, no waiting.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from holdfast.residency.packing.pack_layout import LANES, TILE, Layout

# By name: it has no types, and is not there at all on machines without a GPU.
triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")
if TYPE_CHECKING:
    constexpr = Any  # as an annotation, which may not be a variable
else:
    constexpr = tl.constexpr

# Eight weights for each thread: 16 bytes to store, and no exchange of registers before it.
_WARPS = LANES // 8 // 32
_ESCAPES_AT_ONCE = 1024


def decode(
    payload: torch.Tensor, layout: Layout, target: torch.Tensor, *, warps: int | None = None
) -> None:
    """Write the weights into `target`, queued on the current stream of its device.

    `warps` (1, 2, 4 …) of a program is for measuring.
    """
    out = target.view(torch.uint16)
    with _on(target.device):
        if layout.scheme == "flat":
            _launch_flat(payload, layout, out, warps or _WARPS)
        else:
            _launch_ranked(payload, layout, out, warps or _WARPS)
        if layout.escapes:
            _launch_escapes(payload, layout, out)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever the tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _launch_flat(payload: torch.Tensor, layout: Layout, out: torch.Tensor, warps: int) -> None:
    _flat_kernel[(layout.tiles * (TILE // 2 // LANES),)](
        payload[8:24].view(torch.int64),
        payload[layout.low_at :],
        payload[layout.codes_at :],
        out,
        layout.elements,
        HALF=TILE // 2,
        LANES=LANES,
        num_warps=warps,
    )


def _launch_ranked(payload: torch.Tensor, layout: Layout, out: torch.Tensor, warps: int) -> None:
    signs_at = layout.high_at + layout.tiles * TILE // 4
    _ranked_kernel[(layout.tiles,)](
        payload[:24].view(torch.int64),
        payload[layout.low_at :],
        payload[layout.codes_at :],
        payload[layout.high_at :],
        payload[signs_at:],
        payload[layout.starts_at : layout.starts_at + layout.tiles * 8].view(torch.int64),
        payload[layout.list_at : layout.places_at].view(torch.int32),
        out,
        layout.elements,
        WIDTH=layout.width,
        FP16=layout.kind == "fp16",
        LANES=LANES,
        num_warps=warps,
    )


def _launch_escapes(payload: torch.Tensor, layout: Layout, out: torch.Tensor) -> None:
    integer = torch.int32 if layout.place_bytes == 4 else torch.int64
    places = payload[layout.places_at :][: layout.escapes * layout.place_bytes]
    values = payload[layout.values_at :][: layout.escapes * 2]
    _escapes_kernel[(triton.cdiv(layout.escapes, _ESCAPES_AT_ONCE),)](
        places.view(integer),
        values.view(torch.uint16),
        out,
        layout.escapes,
        SIZE=_ESCAPES_AT_ONCE,
        num_warps=4,
    )


@triton.jit
def _flat_kernel(table, low, codes, out, elements, HALF: constexpr, LANES: constexpr):
    program = tl.program_id(0).to(tl.int64)
    tile = program // (HALF // LANES)
    lane = program % (HALF // LANES) * LANES + tl.arange(0, LANES)
    base = tl.load(table).to(tl.int32) & 255
    last = (tl.load(table + 1) >> 56).to(tl.int32) & 255
    shared = tl.load(codes + tile * HALF + lane).to(tl.int32)
    for row in tl.static_range(2):
        at = tile * (2 * HALF) + row * HALF + lane
        code = (shared >> (4 * row)) & 15
        exponent = tl.where(code == 15, last, base + code)
        bits = tl.load(low + at, mask=at < elements, other=0).to(tl.int32)
        word = ((bits & 0x80) << 8) | (bits & 0x7F) | (exponent << 7)
        tl.store(out + at, word.to(tl.uint16), mask=at < elements)


@triton.jit
def _ranked_kernel(
    table,
    low,
    codes,
    upper,
    signs,
    starts,
    listed,
    out,
    elements,
    WIDTH: constexpr,
    FP16: constexpr,
    LANES: constexpr,
):
    """A lane has eight weights, one in each row; its entries of the list are neighbours."""
    tile = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    first = tl.load(table).to(tl.int32)
    near = tl.load(table + 1)
    far = tl.load(table + 2)
    plane = codes + tile * (2 * LANES) + lane
    shared = tl.load(plane).to(tl.int32) | (tl.load(plane + LANES).to(tl.int32) << 8)

    # How many of a lane's codes are 3, without a loop: pairs of bits, then nibbles, then bytes.
    count = shared & (shared >> 1) & 0x5555
    count = (count & 0x3333) + ((count >> 2) & 0x3333)
    count = (count + (count >> 4)) & 0x0F0F
    count = (count + (count >> 8)) & 0x1F
    before = tl.cumsum(count, 0) - count

    # Eight entries of four bits at most: two words always hold them all.
    start = tl.load(starts + tile) * WIDTH
    bit = (start & 31).to(tl.int32) + before * WIDTH
    word_at = listed + (start >> 5) + (bit >> 5)
    lower = tl.load(word_at).to(tl.uint32, bitcast=True).to(tl.uint64)
    upward = tl.load(word_at + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    entries = ((lower | (upward << 32)) >> (bit & 31).to(tl.uint64)).to(tl.uint32)

    if FP16:
        plane = upper + tile * (2 * LANES) + lane
        high = tl.load(plane).to(tl.int32) | (tl.load(plane + LANES).to(tl.int32) << 8)
        sign = tl.load(signs + tile * LANES + lane).to(tl.int32)
    else:
        high = shared  # not read
        sign = shared

    for row in tl.static_range(8):
        at = tile * (8 * LANES) + row * LANES + lane
        code = (shared >> (2 * row)) & 3
        entry = (entries & (2**WIDTH - 1)).to(tl.int32)
        if WIDTH == 3:
            rare = near >> (entry * 8).to(tl.int64)
        else:
            rare = tl.where(entry < 8, near, far) >> ((entry & 7) * 8).to(tl.int64)
        exponent = tl.where(code == 3, rare.to(tl.int32), first >> (code * 8)) & 255
        entries = tl.where(code == 3, entries >> WIDTH, entries)
        bits = tl.load(low + at, mask=at < elements, other=0).to(tl.int32)
        if FP16:
            bits |= (((high >> (2 * row)) & 3) << 8) | (((sign >> row) & 1) << 15)
            word = bits | (exponent << 10)
        else:
            word = ((bits & 0x80) << 8) | (bits & 0x7F) | (exponent << 7)
        tl.store(out + at, word.to(tl.uint16), mask=at < elements)


@triton.jit(do_not_specialize=["escapes"])
def _escapes_kernel(places, values, out, escapes, SIZE: constexpr):
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = index < escapes
    place = tl.load(places + index, mask=inside, other=0).to(tl.int64)
    tl.store(out + place, tl.load(values + index, mask=inside, other=0), mask=inside)
