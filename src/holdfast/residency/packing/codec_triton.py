"""Triton kernels that unpack 16-bit floats: one pass over memory, and a small one for escapes.

Only launches kernels: allocates nothing, copies nothing to the host, does not wait.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from holdfast.residency.packing.layouts import LANES, TILE, Layout

# Imported by name: it has no types and is missing on machines without a GPU.
triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")
if TYPE_CHECKING:
    constexpr = Any  # as an annotation, which may not be a variable
else:
    constexpr = tl.constexpr

# Eight weights per thread: one store of 16 bytes, without exchanging registers first.
_WARPS = LANES // 8 // 32
_ESCAPES_AT_ONCE = 1024


def decode(
    payload: torch.Tensor, layout: Layout, target: torch.Tensor, *, warps: int | None = None
) -> None:
    """Write the weights into `target`, queued on its current stream; `warps` is for benchmarks."""
    out, device = target.view(torch.uint16), target.device
    # Triton launches on the current device, wherever the tensors are.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if layout.scheme == "flat":
            _launch_flat(payload, layout, out, warps or _WARPS)
        else:
            _launch_ranked(payload, layout, out, warps or _WARPS)
        if layout.escapes:
            _launch_escapes(payload, layout, out)


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
        payload[layout.list_at : layout.indices_at].view(torch.int32),
        out,
        layout.elements,
        WIDTH=layout.width,
        FP16=layout.kind == "fp16",
        LANES=LANES,
        num_warps=warps,
    )


def _launch_escapes(payload: torch.Tensor, layout: Layout, out: torch.Tensor) -> None:
    integer = torch.int32 if layout.index_bytes == 4 else torch.int64
    indices = payload[layout.indices_at :][: layout.escapes * layout.index_bytes]
    values = payload[layout.values_at :][: layout.escapes * 2]
    _escapes_kernel[(triton.cdiv(layout.escapes, _ESCAPES_AT_ONCE),)](
        indices.view(integer),
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
    """A lane has eight weights, one per row; its list entries are adjacent."""
    tile = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    first = tl.load(table).to(tl.int32)
    near = tl.load(table + 1)
    far = tl.load(table + 2)
    plane = codes + tile * (2 * LANES) + lane
    shared = tl.load(plane).to(tl.int32) | (tl.load(plane + LANES).to(tl.int32) << 8)

    # Count the codes of a lane that are 3, without a loop: bit pairs, nibbles, then bytes.
    count = shared & (shared >> 1) & 0x5555
    count = (count & 0x3333) + ((count >> 2) & 0x3333)
    count = (count + (count >> 4)) & 0x0F0F
    count = (count + (count >> 8)) & 0x1F
    before = tl.cumsum(count, 0) - count

    # At most eight entries of four bits, so two words hold them all.
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
def _escapes_kernel(indices, values, out, escapes, SIZE: constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < escapes
    index = tl.load(indices + at, mask=inside, other=0).to(tl.int64)
    tl.store(out + index, tl.load(values + at, mask=inside, other=0), mask=inside)
