"""Atomic writes of files, paths of users, JSON files; errors name the file."""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput


def write_whole(path: Path, data: str | bytes, *, private: bool = False) -> None:
    """Replace `path` by `data` atomically: an error or Ctrl-C leaves the old file.

    Follows links. Writes to a device or pipe (`/dev/null`, `/dev/stdout`) without replacing it.
    Only this user can read a `private` file. Raises OSError.
    """
    content = data.encode() if isinstance(data, str) else data
    target = _follow_links(path)
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    # The name is known before the file exists, so that it can be removed after Ctrl-C. It does not
    # contain the target's name, which may already have the greatest length.
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        if private:
            draft.touch(mode=0o600, exist_ok=False)
        with draft.open("wb" if private else "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name with no content
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def expand_path(path: str | Path) -> Path:
    """Replace ~ and ~name in a path. Raises BadInput for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise BadInput(
            f"cannot use {str(path)!r}: there is no such user, or no home folder",
            expected="a path",
            hint=f"./{path} for a name that begins with ~",
        ) from exc


def resolve_path(path: Path) -> Path:
    """Follow all links of a path. Raises BadInput for a circle of links."""
    try:
        return _follow_links(path)
    except OSError as exc:
        raise BadInput(
            f"cannot use {str(path)!r}: {exc.strerror}", expected="a path that leads somewhere"
        ) from exc


def _follow_links(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as exc:  # a circle of links, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from exc


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object. Raises BadInput with the name of the file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise BadInput(
            f"cannot read {str(file)!r}: {exc.strerror}", expected="a readable file"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise BadInput(
            f"cannot read {str(file)!r}: it is not JSON ({exc})", hint="copy or download it again"
        ) from exc
    if not isinstance(content, dict):
        raise BadInput(
            f"cannot read {str(file)!r}: it holds no JSON object", hint="copy or download it again"
        )
    return content
