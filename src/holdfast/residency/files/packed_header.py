"""What the header of a packed safetensors file says of each tensor, and the checksum that seals it.

In the file a packed tensor is a uint8 vector under its own name. Its dtype, shape and layout are in
the metadata, with a CRC-32 of that text and of the tensor's bytes; the original header and the
SHA-256 of the original file are there too, so that it can be restored byte for byte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.residency.packing.layouts import SCHEMES, Book, Layout, lay_out

FORMAT = "holdfast-packed-1"
KINDS = {"BF16": "bf16", "F16": "fp16"}
_NUMBERS = ("width", "base", "listed", "escapes")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A tensor of a packed file. `layout` is None if it is stored as it was."""

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None
    crc32: int

    def is_intact(self, name: str, data: Any) -> bool:
        """Whether `data`, a buffer with the bytes in the file, and what is said of it are whole."""
        return self.crc32 == compute_crc32(name, self.dtype, self.shape, self.layout, data)


def compute_crc32(
    name: str, dtype: str, shape: tuple[int, ...], layout: Layout | None, data: Any
) -> int:
    """The checksum of a tensor's bytes and of everything that decoding them depends on."""
    about = json.dumps([name, dtype, list(shape), _fields(layout)])
    return zlib.crc32(data, zlib.crc32(about.encode()))


def to_json(sealed: Sealed) -> dict[str, Any]:
    """What the metadata says of a tensor."""
    fields = {"crc32": sealed.crc32, **_fields(sealed.layout)}
    if sealed.layout is not None:
        fields |= {"dtype": sealed.dtype, "shape": list(sealed.shape)}
    return fields


def read_sealed(metadata: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Sealed]:
    """The tensors of a packed file by name. `stored` are the header's entries.

    Raises ValueError, KeyError or TypeError for anything but the metadata of a packed file.
    """
    about: dict[str, Any] = json.loads(metadata["tensors"])
    if about.keys() != stored.keys():
        raise ValueError("the metadata names other tensors")
    return {name: _sealed(entry, stored[name]) for name, entry in about.items()}


def _sealed(entry: Mapping[str, Any], stored: Mapping[str, Any]) -> Sealed:
    crc32 = _integer(entry["crc32"])
    if "scheme" not in entry:
        return Sealed(str(stored["dtype"]), tuple(stored["shape"]), None, crc32)
    dtype, shape = entry["dtype"], tuple(map(_integer, entry["shape"]))
    layout = _layout(entry, KINDS[dtype], shape)
    start, end = stored["data_offsets"]
    if stored["dtype"] != "U8" or end - start != layout.nbytes:
        raise ValueError("a packed tensor has another size than its layout")
    return Sealed(dtype, shape, layout, crc32)


def _layout(entry: Mapping[str, Any], kind: str, shape: tuple[int, ...]) -> Layout:
    """The layout, computed from a few numbers, so that no offset can point elsewhere."""
    elements = 1
    for size in shape:
        elements *= size
    width, base, listed, escapes = (_integer(entry[name]) for name in _NUMBERS)
    extra, scheme = entry["extra"], entry["scheme"]
    if scheme not in SCHEMES or width not in ((3, 4) if scheme == "ranked" else (0,)):
        raise ValueError("an unknown scheme")
    if base > 255 or (extra is not None and _integer(extra) > 255) or listed + escapes > elements:
        raise ValueError("a layout with impossible numbers")
    book = Book(scheme, width, (), (), base, extra)
    return lay_out(kind, book, elements=elements, listed=listed, escapes=escapes)


def _fields(layout: Layout | None) -> dict[str, Any]:
    names = () if layout is None else ("scheme", "extra", *_NUMBERS)
    return {name: getattr(layout, name) for name in names}


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError("a number is negative, too large or not an integer")
    return value
