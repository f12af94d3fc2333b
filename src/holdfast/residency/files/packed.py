"""Packs safetensors files without losing a bit, and restores the originals byte for byte.

A file is written under another name and renamed when it is whole and on the disk, so that there is
never half a file under its own name. The source is only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from holdfast.base.errors import BadInput
from holdfast.base.interrupts import is_interrupt
from holdfast.residency.files.checkpoint import TensorInfo, read_header
from holdfast.residency.files.packed_header import (
    FORMAT,
    KINDS,
    Sealed,
    compute_crc32,
    to_json,
)
from holdfast.residency.files.reading import view_bytes
from holdfast.residency.packing.layouts import SCHEMES, Layout
from holdfast.residency.packing.pack import pack, unpack

Progress = Callable[[int, int], object]  # bytes of the source done, and in all

_LENGTH_BYTES = 8
_ALIGN = 8  # of the header, as the safetensors package writes it
_READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """The result for a file: bytes before and after, tensors that are packed, and all of them."""

    raw_bytes: int
    file_bytes: int
    packed: int
    tensors: int


def is_packed(path: Path) -> bool:
    """Whether a safetensors file is packed. Raises BadInput for any other or a broken file."""
    return any(info.sealed is not None for info in read_header(path).values())


def pack_file(
    source: Path,
    target: Path,
    *,
    device: torch.device | str = "cpu",
    schemes: Sequence[str] = SCHEMES,
    progress: Progress = lambda *_: None,
) -> Packed:
    """Pack the bf16 and fp16 weights of `source` into the new file `target`.

    Each weight is decoded again and compared before it is written. `device` computes; what does not
    fit there is computed on the CPU. Raises BadInput, OSError, or whatever `progress` raises.
    """
    header, text = read_header(source), _read_text(source)
    if any(info.sealed is not None for info in header.values()):
        raise BadInput(
            f"cannot pack {str(source)!r}: it is packed already", expected="a file that is not"
        )
    ordered = sorted(header.items(), key=lambda item: (item[1].start, item[1].end))
    size = source.stat().st_size
    _refuse_gaps(source, ordered, len(text), size)
    digest = hashlib.sha256(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    room = _header_room(ordered, text)
    with source.open("rb") as file, writing(target) as out:
        out.seek(_LENGTH_BYTES + room)
        sealed: dict[str, Sealed] = {}
        places: dict[str, tuple[int, int]] = {}
        at = done = 0
        file.seek(_LENGTH_BYTES + len(text))
        for name, info in ordered:
            raw = _read_tensor(file, info.size_bytes)
            digest.update(view_bytes(raw))
            sealed[name], payload = _pack_tensor(name, info, raw, device, schemes)
            out.write(view_bytes(payload))
            places[name] = (at, at + payload.numel())
            at += payload.numel()
            done += info.size_bytes
            progress(done, size)
        out.seek(0)
        out.write(_make_header(sealed, places, text, digest.hexdigest(), room))
    packed = sum(one.layout is not None for one in sealed.values())
    return Packed(size, target.stat().st_size, packed, len(sealed))


def unpack_file(source: Path, target: Path, *, progress: Progress = lambda *_: None) -> Packed:
    """Restore the original of a packed file, byte for byte, as the new file `target`.

    Raises BadInput for a file that is not packed or not whole, OSError, or what `progress` raises.
    """
    header = read_header(source)
    if not header or any(info.sealed is None for info in header.values()):
        raise BadInput(
            f"cannot unpack {str(source)!r}: it is not packed",
            expected="a file that `holdfast pack` wrote",
        )
    metadata = json.loads(_read_text(source))["__metadata__"]
    text = str(metadata.get("header")).encode()
    beginning = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    digest = hashlib.sha256(beginning)
    size, done = source.stat().st_size, 0
    with source.open("rb") as file, writing(target) as out:
        out.write(beginning)
        for name, info in sorted(header.items(), key=lambda item: (item[1].start, item[1].end)):
            file.seek(info.start)
            raw = decode(source, name, info, _read_tensor(file, info.size_bytes))
            digest.update(view_bytes(raw))
            out.write(view_bytes(raw))
            done += info.size_bytes
            progress(done, size)
        if digest.hexdigest() != metadata.get("sha256"):
            raise _refuse_damaged(source, "it does not give the file that was packed")
    packed = sum(info.is_packed for info in header.values())
    return Packed(size, target.stat().st_size, packed, len(header))


def read_tensor(path: Path, name: str, info: TensorInfo) -> torch.Tensor:
    """The bytes of one tensor of any safetensors file, decoded. Raises BadInput."""
    with path.open("rb") as file:
        file.seek(info.start)
        return decode(path, name, info, _read_tensor(file, info.size_bytes))


def decode(path: Path, name: str, info: TensorInfo, data: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor from those of the file (1-D uint8). Raises BadInput if damaged."""
    require_intact(path, name, info, data)
    layout = info.sealed.layout if info.sealed is not None else None
    if layout is None:
        return data
    target = torch.empty(layout.raw_bytes, dtype=torch.uint8)
    unpack(data, layout, target)
    return target


def require_intact(path: Path, name: str, info: TensorInfo, data: torch.Tensor) -> None:
    """Raise BadInput if `data`, the bytes of a tensor in a packed file, is not what was written."""
    if info.sealed is not None and not info.sealed.is_intact(name, view_bytes(data)):
        raise _refuse_damaged(path, f"the checksum of {name!r} is wrong")


@contextlib.contextmanager
def writing(target: Path) -> Iterator[BinaryIO]:
    """A new file that gets its name when it is whole; after an error or Ctrl-C there is none."""
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _pack_tensor(
    name: str,
    info: TensorInfo,
    raw: torch.Tensor,
    device: torch.device | str,
    schemes: Sequence[str],
) -> tuple[Sealed, torch.Tensor]:
    kind = KINDS.get(info.dtype)
    packed = None if kind is None else _pack_and_compare(raw, kind, device, schemes)
    layout, payload = packed or (None, raw)
    crc32 = compute_crc32(name, info.dtype, info.shape, layout, view_bytes(payload))
    return Sealed(info.dtype, info.shape, layout, crc32), payload


def _pack_and_compare(
    raw: torch.Tensor, kind: str, device: torch.device | str, schemes: Sequence[str]
) -> tuple[Layout, torch.Tensor] | None:
    """The layout and payload, on the host; None if packing saves too little."""
    try:
        there = raw.to(device)
        packed = pack(there, kind, schemes=schemes)
        if packed is None:
            return None
        layout, payload = packed
        again = torch.zeros_like(there)
        unpack(payload, layout, again)
        if not torch.equal(there, again):
            raise BadInput(
                f"cannot pack on {device}: the weights differ when they are decoded",
                expected="a device that computes right",
                hint="--device cpu",
            )
        return layout, payload.cpu()
    except (torch.OutOfMemoryError, RuntimeError) as exc:
        if str(device) == "cpu" or is_interrupt(exc):
            raise
        return _pack_and_compare(raw, kind, "cpu", schemes)


# ---- bytes of files


def _read_text(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))


def _read_tensor(file: BinaryIO, nbytes: int) -> torch.Tensor:
    data = torch.empty(nbytes, dtype=torch.uint8)
    view, at = view_bytes(data), 0
    while at < nbytes:
        count = file.readinto(view[at : at + _READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise BadInput(f"cannot read weights {file.name!r}: it has become shorter")
        at += count
    return data


def _refuse_gaps(
    path: Path, ordered: list[tuple[str, TensorInfo]], text_bytes: int, size: int
) -> None:
    """Packed files keep tensors alone: bytes between them could not be restored."""
    end = _LENGTH_BYTES + text_bytes
    for name, info in ordered:
        if info.start != end:
            raise BadInput(
                f"cannot pack {str(path)!r}: {name!r} does not begin where the one before it ends",
                expected="a safetensors file as its package writes it",
            )
        end = info.end
    if end != size:
        raise BadInput(
            f"cannot pack {str(path)!r}: {size - end} B come after its last tensor",
            expected="a safetensors file as its package writes it",
        )


def _header_room(ordered: list[tuple[str, TensorInfo]], text: bytes) -> int:
    """Enough bytes for the header, whose numbers are known when everything is packed."""
    longest = 0
    for name, info in ordered:
        numbers = {"crc32": 1 << 32, "scheme": "ranked", "extra": 255, "width": 4, "base": 255}
        numbers |= {"listed": info.elements, "escapes": info.elements, "dtype": info.dtype}
        numbers |= {"shape": list(info.shape), "data_offsets": [info.end, info.end]}
        # Once as an entry, once within the metadata, where quotation marks are escaped.
        longest += 2 * len(json.dumps(json.dumps({name: numbers})))
    longest += len(json.dumps(text.decode())) + 1024
    return -(-longest // _ALIGN) * _ALIGN


def _make_header(
    sealed: dict[str, Sealed],
    places: dict[str, tuple[int, int]],
    text: bytes,
    sha256: str,
    room: int,
) -> bytes:
    metadata = {
        "format": FORMAT,
        "tensors": json.dumps({name: to_json(one) for name, one in sealed.items()}),
        "sha256": sha256,
        "header": text.decode(),
    }
    entries: dict[str, Any] = {"__metadata__": metadata}
    for name, (start, end) in places.items():
        one = sealed[name]
        stored = ("U8", [end - start]) if one.layout is not None else (one.dtype, list(one.shape))
        entries[name] = {"dtype": stored[0], "shape": stored[1], "data_offsets": [start, end]}
    found = json.dumps(entries, separators=(",", ":")).encode()
    return room.to_bytes(_LENGTH_BYTES, "little") + found.ljust(room)


def _refuse_damaged(path: Path, what: str) -> BadInput:
    return BadInput(
        f"cannot read weights {str(path)!r}: {what}",
        expected="a packed file as it was written",
        hint="copy or pack it again",
    )
