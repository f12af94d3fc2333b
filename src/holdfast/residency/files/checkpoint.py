"""The header of a safetensors file: dtype, shape and byte range of each tensor.

Reads only the header and the length of the file; needs no torch. A packed file (see packed_header)
shows the dtypes and shapes that its tensors have when they are decoded.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.residency.files.packed_header import FORMAT, Sealed, read_sealed

_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000  # the format's own limit
# Bits of one element, by safetensors' dtype names.
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: its bytes are `file[start:end]`. `sealed` if the file is packed."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    sealed: Sealed | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the data in the file."""
        return self.end - self.start

    @property
    def is_packed(self) -> bool:
        """Whether its bytes are packed."""
        return self.sealed is not None and self.sealed.layout is not None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file by name. Raises BadInput for any other or a broken file."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or not 2 <= length <= _LARGEST_HEADER:
                raise _not_safetensors(path)
            if size < _LENGTH_BYTES + length:
                raise _refuse_truncated(path, size)
            return _tensors(path, file.read(length), size)
    except OSError as exc:
        raise BadInput(
            f"cannot read weights {str(path)!r}: {exc.strerror}", expected="a readable file"
        ) from exc


def _tensors(path: Path, text: bytes, size: int) -> dict[str, TensorInfo]:
    data = _LENGTH_BYTES + len(text)
    try:
        entries: dict[str, Any] = json.loads(text)
        metadata = entries.pop("__metadata__", None) or {}
        is_packed = metadata.get("format") == FORMAT
        sealed = _read_sealed(path, metadata, entries) if is_packed else {}
        tensors = {name: _tensor(entry, data, sealed.get(name)) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as exc:
        raise _not_safetensors(path) from exc
    wanted = max((tensor.end for tensor in tensors.values()), default=data)
    if wanted > size:
        raise _refuse_truncated(path, size - data, wanted - data)
    for name, tensor in tensors.items():
        bits = BITS.get(tensor.dtype)
        if tensor.is_packed:  # its size was checked with its layout
            continue
        if bits is None and tensor.size_bytes >= 0:  # a dtype newer than this module
            continue
        wanted = tensor.elements * (bits or 0) // 8
        if tensor.size_bytes != wanted:
            raise BadInput(
                f"cannot read weights {str(path)!r}: {name!r} has {tensor.size_bytes} B",
                expected=f"{wanted} B for {tensor.dtype} of shape {list(tensor.shape)}",
                hint="download or copy it again",
            )
    return tensors


def _read_sealed(
    path: Path, metadata: dict[str, Any], entries: dict[str, Any]
) -> dict[str, Sealed]:
    try:
        return read_sealed(metadata, entries)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise BadInput(
            f"cannot read weights {str(path)!r}: its metadata is not that of a packed file",
            expected="a file as `holdfast pack` writes it",
            hint="pack the original again, or copy the packed file again",
        ) from exc


def _tensor(entry: dict[str, Any], data: int, sealed: Sealed | None) -> TensorInfo:
    start, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(value) is int and value >= 0 for value in (start, end, *shape)):
        raise ValueError("a size is negative or not an integer")
    dtype = str(entry["dtype"])
    if sealed is not None:
        dtype, shape = sealed.dtype, sealed.shape
    return TensorInfo(dtype, shape, data + start, data + end, sealed)


def _not_safetensors(path: Path) -> BadInput:
    return BadInput(
        f"cannot read weights {str(path)!r}: it is not a safetensors file",
        expected="a file that begins with a safetensors header",
        hint="convert the file with the safetensors package, or download it again",
    )


def _refuse_truncated(path: Path, size: int, wanted: int | None = None) -> BadInput:
    after = f"it ends after {format_bytes(size)}"
    if wanted is not None:
        after += f" of {format_bytes(wanted)}"
    return BadInput(
        f"cannot read weights {str(path)!r}: {after}",
        expected="a whole safetensors file",
        hint="download or copy it again",
    )
