"""Packs a whole model, a folder or one file, into a new place, and restores it from there.

Everything that is not a safetensors file is copied. The new folder gets its name when all of it is
written; after an error or Ctrl-C there is none. Only the new folder and a draft beside it are
written to.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.residency.files.checkpoint import TensorInfo, read_header
from holdfast.residency.files.packed import Packed, Progress, pack_file, unpack_file
from holdfast.residency.files.packed_header import KINDS

_LEAST = 0.65  # of the bytes of 16-bit weights, when they are packed
_SKIPPED = (".git", ".cache")


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the model: where it goes, and its tensors if it is rewritten."""

    source: Path
    target: Path
    header: dict[str, TensorInfo] | None


def pack_model(
    source: Path,
    target: Path,
    *,
    device: Any = "cpu",
    schemes: Sequence[str],
    progress: Progress = lambda *_: None,
) -> Packed:
    """Pack a folder or a safetensors file to `target`, which must not exist.

    Raises BadInput before anything is written where that can be known; later only for a full disk
    or a file that changes meanwhile.
    """

    def write(file: _File, report: Progress) -> Packed:
        options = {"device": device, "schemes": schemes, "progress": report}
        return pack_file(file.source, file.target, **options)

    def can_pack(header: dict[str, TensorInfo]) -> bool:
        return any(info.dtype in KINDS and info.sealed is None for info in header.values())

    what = "has no weights in bf16 or fp16 that are not packed"
    return _rewrite("pack", source, target, can_pack, what, write, progress)


def unpack_model(source: Path, target: Path, *, progress: Progress = lambda *_: None) -> Packed:
    """Restore the original of a packed folder or file, byte for byte, as `pack_model` packs."""

    def write(file: _File, report: Progress) -> Packed:
        return unpack_file(file.source, file.target, progress=report)

    def can_unpack(header: dict[str, TensorInfo]) -> bool:
        return any(info.sealed is not None for info in header.values())

    return _rewrite("unpack", source, target, can_unpack, "is not packed", write, progress)


def _rewrite(
    verb: str,
    source: Path,
    target: Path,
    is_wanted: Any,
    otherwise: str,
    write: Any,
    progress: Progress,
) -> Packed:
    _refuse_target(verb, source, target)
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    files = list(_files(source, draft if source.is_dir() else target, is_wanted))
    if not any(file.header is not None for file in files):
        raise BadInput(f"cannot {verb} {str(source)!r}: it {otherwise}")
    _refuse_full_disk(verb, files, target)
    sizes = [file.source.stat().st_size for file in files]
    done, results = 0, []
    try:
        for file, size in zip(files, sizes, strict=True):
            begun = done

            def report(now: int, _: int, begun: int = begun) -> None:
                progress(begun + now, sum(sizes))

            file.target.parent.mkdir(parents=True, exist_ok=True)
            if file.header is None:
                shutil.copyfile(file.source, file.target)
            else:
                results.append(write(file, report))
            done += size
            progress(done, sum(sizes))
        if not any(one.packed for one in results):
            if source.is_file():
                target.unlink()
            raise BadInput(
                f"cannot {verb} {str(source)!r}: no weight would take less than 0.9 of its bytes",
                expected="weights that this scheme makes smaller",
                hint="--scheme ranked, which packs fp16 too",
            )
        if source.is_dir():
            _sync_folders(draft)
            draft.rename(target)
    except OSError as exc:
        raise BadInput(
            f"cannot {verb} {str(source)!r}: {exc.strerror or exc}",
            expected=f"a readable model, and a folder with room for it: {str(target.parent)!r}",
        ) from exc
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Packed(
        sum(one.raw_bytes for one in results),
        sum(one.file_bytes for one in results),
        sum(one.packed for one in results),
        sum(one.tensors for one in results),
    )


def _files(source: Path, target: Path, is_wanted: Any) -> Iterator[_File]:
    """Every file of the model. Raises BadInput for weights that are broken."""
    if source.is_file():
        header = read_header(source)
        yield _File(source, target, header if is_wanted(header) else None)
        return
    if not any(list(source.glob(names)) for names in ("*.safetensors", "*/*.safetensors")):
        raise BadInput(
            f"cannot find weights in {str(source)!r}",
            expected="a folder with .safetensors files, or with folders that have some",
        )
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        if set(inner.parts) & set(_SKIPPED) or not path.is_file():
            continue
        header = read_header(path) if path.suffix == ".safetensors" else None
        wanted = header if header is not None and is_wanted(header) else None
        yield _File(path, target / inner, wanted)


def _refuse_target(verb: str, source: Path, target: Path) -> None:
    if target.exists() or target.is_symlink():
        found = "there is one already", "name another, or remove it first"
    elif not target.parent.is_dir():
        found = "its folder does not exist", f"mkdir -p {target.parent}"
    elif source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        found = "it would be inside the model", "name a place outside of it"
    else:
        return
    what, hint = found
    raise BadInput(
        f"cannot {verb} to {str(target)!r}: {what}", expected="a new file or folder", hint=hint
    )


def _refuse_full_disk(verb: str, files: Sequence[_File], target: Path) -> None:
    """Refuse what surely does not fit; a disk that fills up later is an error too."""
    need = 0
    for file in files:
        if file.header is None:
            need += file.source.stat().st_size
        for info in (file.header or {}).values():
            if info.sealed is not None and info.sealed.layout is not None:
                need += info.sealed.layout.raw_bytes
            else:
                shrinks = verb == "pack" and info.dtype in KINDS
                need += int(info.size_bytes * (_LEAST if shrinks else 1))
    free = shutil.disk_usage(target.parent).free
    if need > free:
        raise BadInput(
            f"cannot {verb} to {str(target)!r}: {format_bytes(free)} are free there",
            expected=f"{format_bytes(need)} or more",
        )


def _sync_folders(folder: Path) -> None:
    """Have the names of new files on the disk before the folder gets its own."""
    if os.name != "posix":
        return
    for path in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
