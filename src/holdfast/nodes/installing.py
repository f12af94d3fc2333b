"""Install, update and remove the pack in a ComfyUI folder, as a link or a copy.

Writes are atomic, and nothing is deleted that was not made here. A copy lists its files with hashes
in `.holdfast.json`: other files stay, and changed files stay unless `force` is given.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast
from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.files import expand_path, resolve_path, write_whole
from holdfast.nodes import EXAMPLE_WORKFLOWS, LOCALES

NAME = "holdfast"  # of the folder in custom_nodes
RECORD = ".holdfast.json"
FILES = ("__init__.py", "pyproject.toml", "requirements.txt")
FOLDERS = {"example_workflows": EXAMPLE_WORKFLOWS, "locales": LOCALES}
_EXPECTED = "the folder of ComfyUI, with main.py and custom_nodes in it, or its base directory"


@dataclass(frozen=True, slots=True)
class Installed:
    """The pack in a ComfyUI."""

    folder: Path
    how: str  # "link" or "copy"
    state: str  # "new", "updated" or "up to date"
    version: str
    note: str | None = None  # why it is a copy and not a link
    python: Path | None = None  # ComfyUI's own, if it is not this one


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, and the files that were left."""

    folder: Path
    how: str
    kept: tuple[str, ...] = ()


def source() -> Path:
    """Our folder for ComfyUI: in the package, or next to it in a checkout. Raises Unsupported."""
    package = Path(__file__).parent
    for folder in (package / "shim", package.parents[2] / "comfyui"):
        if all((folder / file).is_file() for file in FILES):
            return folder
    raise Unsupported(
        "this Holdfast has no folder for ComfyUI",
        expected=f"{package / 'shim'} with {', '.join(FILES)}",
        hint=f"{shlex.quote(sys.executable)} -m pip install --force-reinstall holdfast",
    )


def install(folder: Path, *, copy: bool = False, force: bool = False) -> Installed:
    """Install or update the pack in the ComfyUI of `folder`.

    Makes a link, or a copy if links do not work or with `copy`; an existing copy stays a copy.
    `force` replaces changed files of a copy, and a link to another place. Raises BadInput, also if
    something else has the name, and Unsupported.
    """
    target = custom_nodes(folder) / NAME
    try:
        target.parent.mkdir(exist_ok=True)
        how, state, note = _place(source(), target, copy, force)
    except OSError as exc:
        raise BadInput(
            f"cannot write into {str(target.parent)!r}: {exc.strerror}",
            expected="a folder to write into",
        ) from exc
    return Installed(target, how, state, holdfast.__version__, note, _find_own_python(folder))


def remove(folder: Path) -> Removed:
    """Remove the pack from the ComfyUI of `folder`. Raises BadInput if it is not there."""
    target = custom_nodes(folder) / NAME
    if not target.is_symlink() and not target.exists():
        raise BadInput(
            f"cannot remove {str(target)!r}: there is no such folder",
            expected="a ComfyUI that Holdfast is in",
        )
    try:
        if target.is_symlink():
            if not _is_ours(target):
                raise _other_link_error(target, "remove")
            target.unlink()
            return Removed(target, "link")
        return Removed(target, "copy", tuple(_remove_copy(target, _read_record(target, "remove"))))
    except OSError as exc:
        raise BadInput(
            f"cannot remove {str(target)!r}: {exc.strerror}", expected="a folder to write into"
        ) from exc


def custom_nodes(folder: Path) -> Path:
    """The custom_nodes folder of the ComfyUI in `folder`. Raises BadInput."""
    folder = resolve_path(expand_path(folder))
    if not folder.is_dir():
        what = "it is no folder" if folder.exists() else "there is no such folder"
        raise BadInput(f"cannot use {str(folder)!r}: {what}", expected=_EXPECTED)
    if folder.name == "custom_nodes":
        return folder
    if (folder / "custom_nodes").is_dir() or _is_program(folder):
        return folder / "custom_nodes"
    inner = folder / "ComfyUI"  # as in the portable version for Windows
    raise BadInput(
        f"cannot use {str(folder)!r}: it is no ComfyUI",
        expected=_EXPECTED,
        hint=str(inner) if inner.is_dir() else None,
    )


def _is_program(folder: Path) -> bool:
    return (folder / "main.py").is_file() and (folder / "comfy").is_dir()


# ---- install


def _place(ours: Path, target: Path, copy: bool, force: bool) -> tuple[str, str, str | None]:
    """Install; returns (how, state, note). Raises OSError, BadInput."""
    if target.is_symlink() and not _is_ours(target) and not force:
        raise _other_link_error(target, "replace")
    if copy or (target.exists() and not target.is_symlink()):
        return "copy", _copy(ours, target, force), None
    return _link(ours, target)


def _link(ours: Path, target: Path) -> tuple[str, str, str | None]:
    """Make a link, or a copy if that fails."""
    there = target.is_symlink()
    if there and target.resolve() == ours.resolve():
        return "link", "up to date", None
    reason = None if (ours / "locales").is_dir() else "the links of this checkout are files"
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        if reason is None:
            draft.symlink_to(ours.resolve(), target_is_directory=True)
            draft.replace(target)
            return "link", "updated" if there else "new", None
    except OSError as exc:
        if exc.errno in (errno.EACCES, errno.EROFS, errno.ENOSPC):
            raise  # a copy could not be written either
        reason = exc.strerror
    finally:
        draft.unlink(missing_ok=True)
    return "copy", _copy(ours, target, False), f"a copy, as no link can be made here: {reason}"


def _copy(ours: Path, target: Path, force: bool) -> str:
    """Make a copy or update it; returns the state."""
    new = dict(_list_files(ours))
    sums = {name: _hash(file) for name, file in new.items()}
    if target.is_symlink() or not target.exists():
        there = target.is_symlink()
        _write_new(new, sums, target)
        return "updated" if there else "new"
    old: dict[str, str] = _read_record(target, "replace")
    found = {name: _hash(target / name) for name in {*old, *new} if (target / name).is_file()}
    changed = [n for n, s in found.items() if s not in (old.get(n), sums.get(n))]
    if changed and not force:
        raise BadInput(
            f"cannot replace {', '.join(sorted(changed))} in {str(target)!r}: changed by somebody",
            expected="the files as Holdfast has written them",
            hint="--force (replaces these files), after you have kept what you need of them",
        )
    if found == sums == old:
        return "up to date"
    _update(new, sums, set(found) - set(new), target)
    return "updated"


def _write_new(new: dict[str, Path], sums: dict[str, str], target: Path) -> None:
    """Copy into a new folder, then rename that to the target."""
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        for name, file in new.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, draft / name)
        _write_record(draft, sums)
        if target.is_symlink():
            target.unlink()
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _update(new: dict[str, Path], sums: dict[str, str], gone: set[str], target: Path) -> None:
    """Update file by file, each atomically; after an interruption the next call continues."""
    for name, file in new.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(target / name, file.read_bytes())
    for name in gone:
        (target / name).unlink()
    _remove_empty(target, gone)
    _write_record(target, sums)


def _list_files(ours: Path) -> Iterator[tuple[str, Path]]:
    """Every file of the pack: its name in the copy, and its path now."""
    for name in FILES:
        yield name, ours / name
    for name, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                yield f"{name}/{file.relative_to(folder).as_posix()}", file


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---- existing copies and links


def _write_record(target: Path, sums: dict[str, str]) -> None:
    about = "Written by `holdfast comfy install`; `holdfast comfy remove` removes these files."
    record = {"about": about, "version": holdfast.__version__, "files": sums}
    write_whole(target / RECORD, json.dumps(record, indent=1) + "\n")


def _read_record(target: Path, verb: str) -> dict[str, str]:
    """The files of our copy with their hashes. Raises BadInput for any other folder."""
    try:
        files = json.loads((target / RECORD).read_text(encoding="utf-8"))["files"]
        if isinstance(files, dict) and all(_is_inside(n, s) for n, s in files.items()):
            return files
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing, or not written by us
    raise BadInput(
        f"cannot {verb} {str(target)!r}: something else has this name",
        expected="the folder that `holdfast comfy install` has made, or none",
        hint="move it away, then again",
    )


def _is_inside(name: Any, its_sum: Any) -> bool:
    """Whether an entry of the record is a path below the folder; the file may be forged."""
    parts = Path(name).parts if isinstance(name, str) else ("..",)
    return isinstance(its_sum, str) and ".." not in parts and not Path(name).is_absolute()


def _is_ours(target: Path) -> bool:
    """Whether a link points to a Holdfast pack, of any version."""
    try:
        with (target / "pyproject.toml").open("rb") as file:
            return tomllib.load(file)["tool"]["comfy"]["DisplayName"] == "Holdfast"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _other_link_error(target: Path, verb: str) -> BadInput:
    return BadInput(
        f"cannot {verb} {str(target)!r}: it is a link to {str(target.readlink())!r}",
        expected="a link to a folder of Holdfast, or none",
        hint="--force (replaces the link)" if verb == "replace" else "remove the link by hand",
    )


def _find_own_python(folder: Path) -> Path | None:
    """The Python that belongs to this ComfyUI, unless it is the running one."""
    folder = resolve_path(expand_path(folder))
    for place in (".venv", "venv", "../.venv", "../venv", "../python_embeded"):
        for program in ("bin/python", "Scripts/python.exe", "python.exe"):
            found = folder / place / program
            if found.is_file():
                here = (folder / place).resolve() == Path(sys.prefix).resolve()
                return None if here else Path(os.path.normpath(found))
    return None


# ---- remove


def _remove_copy(target: Path, files: dict[str, str]) -> list[str]:
    """Remove unchanged files of ours; returns the names of those left."""
    ours = {n for n, s in files.items() if (target / n).is_file() and _hash(target / n) == s}
    compiled = [f"__pycache__/{f.name}" for f in target.glob("__pycache__/__init__.*.pyc")]
    for name in (*ours, *compiled, RECORD):
        (target / name).unlink()
    _remove_empty(target, {*ours, *compiled})
    left = sorted(f.relative_to(target).as_posix() for f in target.rglob("*") if not f.is_dir())
    if not left:
        target.rmdir()
    return left


def _remove_empty(target: Path, gone: set[str]) -> None:
    """Remove folders that became empty without the files `gone`."""
    folders = {p for name in gone for p in (target / name).parents if target in p.parents}
    for folder in sorted(folders, key=lambda p: len(p.parts), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
