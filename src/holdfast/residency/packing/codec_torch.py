"""Packs on every device, and unpacks where there is no Triton, with plain torch operations.

decode() copies nothing to the host and no shape depends on the data, so it can be queued ahead.
Both work in slices, so temporary memory does not grow with the tensor.
"""

from __future__ import annotations

import torch

from holdfast.residency.packing.layouts import LANES, ROWS, TABLE_BYTES, TILE, Book, Layout

# Large slices keep a GPU busy, small ones stay in a CPU's cache.
_DECODE_SLICE = {"flat": 512 * TILE, "ranked": 128 * TILE}
_DECODE_SLICE_CPU = 32 * TILE
_PACK_SLICE = 512 * TILE
_PACK_SLICE_CPU = 32 * TILE
_SCRATCH_PER_WEIGHT = {"flat": 4, "ranked": 56}
_MANTISSA_BITS = {"bf16": 7, "fp16": 10}
_EXPONENT_MASK = {"bf16": 0xFF, "fp16": 0x1F}


def histogram(words: torch.Tensor, kind: str) -> list[int]:
    """How often each of 256 exponents occurs in `words` (int16, the bits of the weights)."""
    counts = torch.zeros(256, dtype=torch.int64, device=words.device)
    for part in words.split(_pack_slice(words)):
        counts += torch.bincount(_exponents(part, kind), minlength=256)
    return counts.tolist()


def encode(words: torch.Tensor, layout: Layout, book: Book) -> torch.Tensor:
    """The payload of `words` (int16): uint8, `layout.nbytes` long, on the same device."""
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8, device=words.device)
    _put(payload, 0, torch.frombuffer(bytearray(book.table()), dtype=torch.uint8))
    lookup = torch.frombuffer(bytearray(book.lookup()), dtype=torch.uint8).to(words.device)
    listed, escapes = _List(payload, layout), _Escapes(payload, layout)
    size, bits = _pack_slice(words), 2 if layout.width else 4
    for first in range(0, layout.elements, size):
        part = words[first : first + size]
        marks = lookup.index_select(0, _exponents(part, layout.kind).to(torch.int32))
        padded = torch.nn.functional.pad(marks, (0, -marks.numel() % TILE))
        low = part & (0x7F if layout.kind == "bf16" else 0xFF)
        if layout.kind == "bf16":
            low |= (part >> 8) & 0x80
        _put(payload, layout.low_at + first, low.to(torch.uint8))
        # An escape has code 0; decoding overwrites its result.
        codes = _planes(padded & (2**bits - 1), bits)
        _put(payload, layout.codes_at + first * bits // 8, codes)
        if layout.kind == "fp16":
            _put_high(payload, layout, first, part)
        if layout.width:
            listed.add(first, padded)
        escapes.add(first, part, marks)
    listed.close()
    return payload


def decode(payload: torch.Tensor, layout: Layout, target: torch.Tensor) -> None:
    """Write the weights into `target` (uint8, 2-byte aligned), queued on the current stream."""
    out = target.view(torch.int16)
    size = _DECODE_SLICE_CPU if target.device.type == "cpu" else _DECODE_SLICE[layout.scheme]
    decode_slice = _decode_flat if layout.scheme == "flat" else _decode_ranked
    for first in range(0, layout.elements, size):
        decode_slice(payload, layout, first, out[first : first + size])
    indices = _part(payload, layout.indices_at, layout.escapes * layout.index_bytes)
    values = _part(payload, layout.values_at, layout.escapes * 2).view(torch.int16)
    integer = torch.int32 if layout.index_bytes == 4 else torch.int64
    # In slices, as torch needs int64 indices, whose memory must stay bounded.
    for index, value in zip(indices.view(integer).split(size), values.split(size), strict=True):
        out.index_copy_(0, index.to(torch.int64), value)


def scratch_bytes(layout: Layout) -> int:
    """An upper bound of the temporary memory of decode(), in bytes."""
    weights = min(layout.tiles * TILE, _DECODE_SLICE[layout.scheme])
    escapes = min(layout.escapes, _DECODE_SLICE[layout.scheme])
    return max(weights * _SCRATCH_PER_WEIGHT[layout.scheme], escapes * 8) + 4096


def _pack_slice(words: torch.Tensor) -> int:
    return _PACK_SLICE_CPU if words.device.type == "cpu" else _PACK_SLICE


def _exponents(words: torch.Tensor, kind: str) -> torch.Tensor:
    shifted = words >> _MANTISSA_BITS[kind]
    return shifted.bitwise_and_(_EXPONENT_MASK[kind]).to(torch.uint8)


def _part(payload: torch.Tensor, at: int, count: int) -> torch.Tensor:
    return payload[at : at + count]


def _put(payload: torch.Tensor, at: int, part: torch.Tensor) -> None:
    flat = part.reshape(-1).view(torch.uint8)
    payload[at : at + flat.numel()].copy_(flat)


def _planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes of full tiles, `bits` each; codes that share a byte are from distant rows."""
    rows = codes.view(-1, 8 // bits, TILE * bits // 8)
    if bits == 2:  # two planes of four rows: a lane of both planes has all rows of that lane
        rows = codes.view(-1, 4, LANES)
    shared = rows[:, 0].clone()
    for row in range(1, rows.shape[1]):
        shared |= rows[:, row] << bits * row
    return shared


def _put_high(payload: torch.Tensor, layout: Layout, first: int, words: torch.Tensor) -> None:
    """Store the two upper bits of fp16 mantissas, then the signs."""
    upper = ((words >> 8) & 3).to(torch.uint8)
    sign = ((words >> 15) & 1).to(torch.uint8)
    missing = -words.numel() % TILE
    at = layout.high_at
    _put(payload, at + first // 4, _planes(torch.nn.functional.pad(upper, (0, missing)), 2))
    at += layout.tiles * TILE // 4
    _put(payload, at + first // 8, _planes(torch.nn.functional.pad(sign, (0, missing)), 1))


class _List:
    """Writes the list entries of exponents that are not among the first three, lane by lane."""

    def __init__(self, payload: torch.Tensor, layout: Layout) -> None:
        self._payload, self._layout = payload, layout
        self._written = 0  # entries, always a multiple of 8, as eight of them fill whole bytes
        self._pending = payload.new_empty(0)

    def add(self, first: int, marks: torch.Tensor) -> None:
        lanes = marks.view(-1, ROWS, LANES).transpose(1, 2).reshape(-1, TILE)
        chosen = (lanes & 3) == 3
        counts = chosen.sum(1)
        starts = counts.cumsum(0) - counts + (self._written + self._pending.numel())
        _put(self._payload, self._layout.starts_at + first // TILE * 8, starts)
        entries = torch.cat([self._pending, lanes.masked_select(chosen) >> 2])
        whole = entries.numel() // 8 * 8
        self._write(entries[:whole])
        self._pending = entries[whole:].clone()

    def close(self) -> None:
        self._write(torch.nn.functional.pad(self._pending, (0, -self._pending.numel() % 8)))

    def _write(self, entries: torch.Tensor) -> None:
        width = self._layout.width
        groups = torch.zeros(entries.numel() // 8, 1, dtype=torch.int32, device=entries.device)
        for index, entry in enumerate(entries.view(-1, 8).unbind(1)):
            groups[:, 0] |= entry.to(torch.int32) << index * width
        at = self._layout.list_at + self._written * width // 8
        _put(self._payload, at, groups.view(torch.uint8)[:, :width])
        self._written += entries.numel()


class _Escapes:
    """Writes weights whose exponent has no code, by index."""

    def __init__(self, payload: torch.Tensor, layout: Layout) -> None:
        self._payload, self._layout = payload, layout
        self._written = 0
        self._integer = torch.int32 if layout.index_bytes == 4 else torch.int64

    def add(self, first: int, words: torch.Tensor, marks: torch.Tensor) -> None:
        layout = self._layout
        indices = (marks >= 0x80).nonzero().view(-1)
        at = layout.indices_at + self._written * layout.index_bytes
        _put(self._payload, at, (indices + first).to(self._integer))
        _put(self._payload, layout.values_at + self._written * 2, words[indices])
        self._written += indices.numel()


def _decode_flat(payload: torch.Tensor, layout: Layout, first: int, out: torch.Tensor) -> None:
    """Decode bf16 in six operations: int8 -> int16 extends the sign, the exponent is added."""
    count, half = out.numel(), TILE // 2
    low = _part(payload, layout.low_at + first, count).view(torch.int8)
    # A one-element tensor (not a scalar) makes the result int16; torch.full copies nothing.
    mask = torch.full((1,), 0x807F - 0x10000, dtype=torch.int16, device=out.device)
    torch.bitwise_and(low, mask, out=out)
    out.add_(layout.base << 7)
    tiles = -(-count // TILE)
    shared = _part(payload, layout.codes_at + first // 2, tiles * half)
    whole = count // TILE
    body, tail = out[: whole * TILE].view(whole, 2, half), out[whole * TILE :]
    for row in range(2):
        codes = shared & 15 if row == 0 else shared >> 4
        _add_codes(layout, body[:, row], codes[: whole * half].view(whole, half))
        rest = tail[row * half : (row + 1) * half]
        _add_codes(layout, rest, codes[whole * half :][: rest.numel()])


def _add_codes(layout: Layout, out: torch.Tensor, codes: torch.Tensor) -> None:
    if not out.numel():
        return
    out.add_(codes, alpha=1 << 7)
    if layout.extra is not None:
        out.add_(codes == 15, alpha=(layout.extra - layout.base - 15) << 7)


def _decode_ranked(payload: torch.Tensor, layout: Layout, first: int, out: torch.Tensor) -> None:
    count = out.numel()
    tiles = -(-count // TILE)
    codes = _rows(_part(payload, layout.codes_at + first // 4, tiles * TILE // 4), 2)
    exponents = _exponents_of(payload, layout, first, codes)
    bits = exponents.to(torch.int16).bitwise_left_shift_(_MANTISSA_BITS[layout.kind])
    if layout.kind == "fp16":
        bits |= _high_bits(payload, layout, first, tiles)
    low = _part(payload, layout.low_at + first, count)
    if layout.kind == "bf16":
        low = low.view(torch.int8).to(torch.int16).bitwise_and_(0x807F - 0x10000)
    torch.bitwise_or(bits.view(-1)[:count], low.to(torch.int16), out=out)


def _exponents_of(
    payload: torch.Tensor, layout: Layout, first: int, codes: torch.Tensor
) -> torch.Tensor:
    """The exponents of full tiles, from the table at the start of the payload."""
    tiles = codes.shape[0]
    listed = codes == 3
    counts = listed.sum(1, dtype=torch.int64)
    at = layout.starts_at + first // TILE * 8
    starts = _part(payload, at, tiles * 8).view(torch.int64).view(tiles, 1)
    lane_starts = counts.cumsum(1).sub_(counts).add_(starts).view(tiles, 1, LANES)
    bit = (
        listed.cumsum(1, dtype=torch.int64)
        .sub_(listed.view(torch.uint8))
        .add_(lane_starts)
        .mul_(layout.width)
    )
    entries = _entries(payload[layout.list_at :], bit, layout.width)
    index = torch.where(listed, entries.add_(8), codes)
    return payload[:TABLE_BYTES].take(index)


def _entries(listed: torch.Tensor, bit: torch.Tensor, width: int) -> torch.Tensor:
    """The list entry at each `bit`; it may extend into the next byte."""
    byte = bit >> 3
    bit &= 7
    entries = listed.take(byte).to(torch.int64)
    entries |= listed.take(byte.add_(1)).to(torch.int64) << 8
    return entries.bitwise_right_shift_(bit).bitwise_and_(2**width - 1)


def _rows(shared: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack codes to (tiles, 8, 1024)."""
    per_byte = 8 // bits
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=shared.device)
    rows = shared.view(-1, 1, LANES) >> shifts.view(per_byte, 1)
    return rows.bitwise_and_(2**bits - 1).view(-1, ROWS, LANES)


def _high_bits(payload: torch.Tensor, layout: Layout, first: int, tiles: int) -> torch.Tensor:
    at = layout.high_at
    upper = _rows(_part(payload, at + first // 4, tiles * TILE // 4), 2)
    at += layout.tiles * TILE // 4
    sign = _rows(_part(payload, at + first // 8, tiles * TILE // 8), 1)
    return (upper.to(torch.int16) << 8) | (sign.to(torch.int16) << 15)
