"""What is inside a safetensors file, without loading it.

Covers: the header, the size of the weights, files that are cut off or are something else.
Leaves to others: turning tensors into models (components).
Promise: reads the first kilobytes of a file and its length, nothing more; needs no torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes

_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a safetensors file by name.

    Raises BadInput if it cannot be read, is no safetensors file, or is not whole.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or not 2 <= length <= _LARGEST_HEADER:
                raise _not_one(path)
            if size < _LENGTH_BYTES + length:
                raise _cut_off(path, size)
            return _tensors(path, file.read(length), size - _LENGTH_BYTES - length)
    except OSError as exc:
        raise BadInput(
            f"cannot read weights {str(path)!r}: {exc.strerror}", expected="a readable file"
        ) from exc


def _tensors(path: Path, text: bytes, data_bytes: int) -> dict[str, TensorInfo]:
    try:
        entries: dict[str, Any] = json.loads(text)
        entries.pop("__metadata__", None)
        spans = [entry["data_offsets"] for entry in entries.values()]
        tensors = {
            name: TensorInfo(entry["dtype"], tuple(entry["shape"]), span[1] - span[0])
            for (name, entry), span in zip(entries.items(), spans, strict=True)
        }
        wanted = max((end for _, end in spans), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as exc:
        raise _not_one(path) from exc
    if wanted > data_bytes:
        raise _cut_off(path, data_bytes, wanted)
    return tensors


def _not_one(path: Path) -> BadInput:
    return BadInput(
        f"cannot read weights {str(path)!r}: it is not a safetensors file",
        expected="a file that begins with a safetensors header",
        hint="convert the file with the safetensors package, or download it again",
    )


def _cut_off(path: Path, size: int, wanted: int | None = None) -> BadInput:
    after = f"it ends after {format_bytes(size)}"
    if wanted is not None:
        after += f" of {format_bytes(wanted)}"
    return BadInput(
        f"cannot read weights {str(path)!r}: {after}",
        expected="a whole safetensors file",
        hint="download or copy it again",
    )
