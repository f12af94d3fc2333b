"""Decides how the weights of one tensor are packed, and the offset of each part of the payload.

A 16-bit float is a sign, an exponent and a mantissa. Signs and mantissas are close to noise; a
trained tensor uses few exponents, and mostly three of them. They are stored by one of two schemes:

    flat     4 bits each: 16 consecutive exponents, or 15 and one other
    ranked   2 bits each: the three most common, or "see the list"; the list has 3 or 4 bits for
             each of the others, in the order of the decoder's lanes

A weight whose exponent has no code is an escape: its index and its 16 bits are at the end. All
functions are pure, and a payload has exactly the size that `decide` computed from the histogram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LANES = 1024  # one byte of a plane serves the same lane of every row
ROWS = 8
TILE = LANES * ROWS  # weights decoded by one program
SCHEMES = ("flat", "ranked")
TABLE_BYTES = 32  # at 0: the first three exponents; at 8: the list's, or those of "flat"

_ALIGN = 16
_SLACK = 8  # the decoders read the list by words, one word beyond its end
_WORTH = 0.9  # of the raw bytes: a larger payload is not worth decoding
# Of the raw bytes: "flat" decodes faster, so it may be that much larger.
_MARGINS = {"flat": 0.01, "ranked": 0.0}
_HIGH_BITS = {"bf16": 0, "fp16": 3}  # besides the exponent and the low byte


@dataclass(frozen=True, slots=True)
class Layout:
    """What a decoder needs besides the payload; can be stored as JSON.

    `*_at` are byte offsets in the payload, multiples of 16. The `low` part holds 8 bits of each
    weight (bf16: sign and mantissa; fp16: the lower 8 bits of the mantissa), `high` the 3 other
    bits of an fp16. `listed` counts the entries of the list, `escapes` the weights at the end, each
    with an index of `index_bytes`. `width` is the bits of a list entry, 0 for "flat". In "flat",
    code i is the exponent `base + i`, but 15 is `extra` unless that is None.
    """

    kind: str
    scheme: str
    elements: int
    width: int
    base: int
    extra: int | None
    listed: int
    escapes: int
    index_bytes: int
    low_at: int
    codes_at: int
    high_at: int
    starts_at: int
    list_at: int
    indices_at: int
    values_at: int
    nbytes: int
    raw_bytes: int

    @property
    def tiles(self) -> int:
        """The number of tiles; the last may be partly filled."""
        return -(-self.elements // TILE)


@dataclass(frozen=True, slots=True)
class Book:
    """The codes of exponents. `first` is empty and `width` 0 for "flat"."""

    scheme: str
    width: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    base: int = 0
    extra: int | None = None

    def table(self) -> bytes:
        """The exponent of each code, as stored at the start of a payload."""
        first = bytes(self.first).ljust(8, b"\0")
        return (first + bytes(self.second)).ljust(TABLE_BYTES, b"\0")

    def lookup(self) -> bytes:
        """One byte for each exponent: bit 7 marks an escape, bits 0-1 the code, 2-5 the list entry.

        For "flat", bits 0-3 are the code.
        """
        marks = bytearray(b"\x80" * 256)
        for code, exponent in enumerate(self.second):
            marks[exponent] = code if self.scheme == "flat" else 3 | code << 2
        for code, exponent in enumerate(self.first):
            marks[exponent] = code
        return bytes(marks)


def decide(
    histogram: Sequence[int], kind: str, schemes: Sequence[str] = SCHEMES
) -> tuple[Layout, Book] | None:
    """The smallest packing for a histogram of exponents; None if it saves less than 10 %."""
    if kind == "fp16":  # 4 bits instead of the 5 of the exponent save too little
        schemes = [scheme for scheme in schemes if scheme != "flat"]
    found = [(_layout(book, histogram, kind), book) for book in _books(histogram, schemes)]
    if not found:
        return None
    layout, book = min(
        found, key=lambda one: one[0].nbytes - _MARGINS[one[0].scheme] * one[0].raw_bytes
    )
    return (layout, book) if layout.nbytes <= _WORTH * layout.raw_bytes else None


def _books(histogram: Sequence[int], schemes: Sequence[str]) -> list[Book]:
    books = []
    if "flat" in schemes:
        # 16 consecutive exponents; or 15, and the most common other one, mostly that of 0.
        base = _window(histogram, 15, None).base
        outside = [e for e in range(256) if not base <= e < base + 15]
        other = max(outside, key=lambda e: (histogram[e], -e))
        books += [_window(histogram, 16, None), _window(histogram, 15, other)]
    if "ranked" in schemes:
        books += [_make_ranked(histogram, 3), _make_ranked(histogram, 4)]
    return books


def _window(histogram: Sequence[int], length: int, extra: int | None) -> Book:
    starts = range(256 - length + 1)
    base = max(starts, key=lambda start: (sum(histogram[start : start + length]), -start))
    second = (*range(base, base + length), *(() if extra is None else (extra,)))
    return Book("flat", 0, (), second, base, extra)


def _make_ranked(histogram: Sequence[int], width: int) -> Book:
    order = sorted(range(256), key=lambda e: (-histogram[e], e))
    return Book("ranked", width, tuple(order[:3]), tuple(order[3 : 3 + 2**width]))


def _layout(book: Book, histogram: Sequence[int], kind: str) -> Layout:
    elements = sum(histogram)
    listed = sum(histogram[e] for e in book.second) if book.width else 0
    escapes = elements - listed - sum(histogram[e] for e in book.first or book.second)
    return lay_out(kind, book, elements=elements, listed=listed, escapes=escapes)


def lay_out(kind: str, book: Book, *, elements: int, listed: int, escapes: int) -> Layout:
    """The layout of so many weights, of which `listed` are in the list and `escapes` at the end."""
    sizes = _sizes(book, kind, elements, listed, escapes)
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end = -(-(end + size) // _ALIGN) * _ALIGN
    return Layout(
        kind=kind,
        scheme=book.scheme,
        elements=elements,
        width=book.width,
        base=book.base,
        extra=book.extra,
        listed=listed,
        escapes=escapes,
        index_bytes=_index_bytes(elements),
        **{name: at for name, at in offsets.items() if name != "table"},
        nbytes=end,
        raw_bytes=2 * elements,
    )


def _sizes(book: Book, kind: str, elements: int, listed: int, escapes: int) -> dict[str, int]:
    tiles = -(-elements // TILE)
    return {
        "table": TABLE_BYTES,
        "low_at": elements,
        "codes_at": tiles * TILE // (4 if book.width else 2),
        "high_at": tiles * TILE * _HIGH_BITS[kind] // 8,
        "starts_at": tiles * 8 if book.width else 0,
        "list_at": -(-listed // 8) * book.width + _SLACK if book.width else 0,
        "indices_at": escapes * _index_bytes(elements),
        "values_at": escapes * 2,
    }


def _index_bytes(elements: int) -> int:
    return 4 if elements <= 2**31 else 8
