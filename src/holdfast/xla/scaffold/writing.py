"""Write a new port into a folder, whole or not at all.

An error or Ctrl-C leaves no half of a pack. Files that are not the scaffold's are never touched,
and without `force` no existing file is.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path, resolve_path
from holdfast.base.threads import Team
from holdfast.xla.scaffold.classes import DEFAULT_CLASS, guess, resolve
from holdfast.xla.scaffold.names import name_parts
from holdfast.xla.scaffold.rendering import render


@dataclass(frozen=True, slots=True)
class Pack:
    """A port that was written."""

    folder: Path
    files: tuple[str, ...]
    cls: str
    chosen: str  # who chose the class: "given", "guessed" or "none fits"
    nodes: tuple[str, ...]

    @property
    def in_comfyui(self) -> bool:
        """Whether it lies where ComfyUI finds it."""
        return self.folder.parent.name == "custom_nodes"


def new(name: str, cls: str | None = None, out: Path | None = None, force: bool = False) -> Pack:
    """Write the pack of a port into `out`, the current folder if there is none.

    Without a class the name decides; where that says nothing it is FLUX's, to be changed by hand.
    Raises BadInput, NotFound for a class that is not there, MissingDependency.
    """
    names = name_parts(name)
    target = _resolve_target(Path.cwd() if out is None else expand_path(out), names.folder, force)
    if cls is not None:
        found, chosen = resolve(cls), "given"
    else:
        found, chosen = (fits, "guessed") if (fits := guess(name)) else (DEFAULT_CLASS, "none fits")
    files = render(names, found)
    _write(target, files)
    return Pack(target, tuple(files), found, chosen, names.nodes)


def _resolve_target(out: Path, folder: str, force: bool) -> Path:
    if not out.is_dir():
        raise BadInput(
            f"cannot write into {str(out)!r}: there is no such folder",
            expected="a folder that exists, such as ComfyUI/custom_nodes",
        )
    target = resolve_path(out) / folder
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise BadInput(
            f"cannot write {str(target)!r}: there is something of that name that is no folder",
            expected="a name that is free",
        )
    if target.exists() and not force:
        raise BadInput(
            f"cannot write {str(target)!r}: there is such a folder",
            expected="a name that is free",
            hint="--force (replaces the files of the scaffold, leaves all others), or another name",
        )
    return target


def _write(target: Path, files: dict[str, str]) -> None:
    """Into a folder beside the target, which then takes its place."""
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        draft.mkdir()
        for file, text in files.items():
            (draft / file).write_text(text, encoding="utf-8")
        _swap(draft, target)
    except OSError as exc:
        raise BadInput(
            f"cannot write {str(target)!r}: {exc.strerror}", expected="a folder to write into"
        ) from exc
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, target: Path) -> None:
    """In a thread of its own, which Ctrl-C does not reach: all files or none."""
    failed: list[OSError] = []

    def swap() -> None:
        try:
            _take_place(draft, target)
        except OSError as exc:
            failed.append(exc)

    with Team() as team:
        team.start(swap)
    if failed:
        raise failed[0]


def _take_place(draft: Path, target: Path) -> None:
    if not target.exists():
        draft.rename(target)
        return
    for file in sorted(draft.iterdir()):
        file.replace(target / file.name)
