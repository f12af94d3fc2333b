"""The tensors of a safetensors file one at a time, decoded if the file is packed."""

from __future__ import annotations

from collections.abc import KeysView
from pathlib import Path
from typing import Any

import torch

from holdfast.residency.files import packed
from holdfast.residency.files.checkpoint import read_header

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def open_tensors(path: Path) -> Any:
    """What safetensors' `safe_open` gives: keys(), get_tensor(name), get_slice(name)[index].

    Memory-mapped, but for packed tensors. Raises BadInput for a broken file.
    """
    if packed.is_packed(path):
        return PackedTensors(path)
    from safetensors import safe_open

    return safe_open(str(path), framework="pt")


class PackedTensors:
    """The tensors of a packed file."""

    def __init__(self, path: Path) -> None:
        self._path, self._header = path, read_header(path)

    def keys(self) -> KeysView[str]:
        """The names of the tensors."""
        return self._header.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read and decode one tensor. Raises BadInput if it is damaged."""
        info = self._header[name]
        raw = packed.read_tensor(self._path, name, info)
        return raw.view(DTYPES[info.dtype]).view(info.shape)

    def get_slice(self, name: str) -> torch.Tensor:
        """A tensor to take a part of."""
        return self.get_tensor(name)
