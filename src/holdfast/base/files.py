"""Files: written so that a reader never sees half of one, read so that a broken one is named."""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput


def write_whole(path: Path, data: str | bytes, *, private: bool = False) -> None:
    """Replace `path` by `data`, whole or not at all: an error or Ctrl-C leaves what was there.

    A link is followed. A device or a pipe (`/dev/null`, `/dev/stdout`) is written to, not replaced.
    What is `private` nobody but this user can read.
    Raises OSError as the system gives it.
    """
    content = data.encode() if isinstance(data, str) else data
    target = _followed(path)
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    # Named before it is made, so that Ctrl-C at any moment knows what to remove; and not after
    # the target, whose name may be as long as a name can be.
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


def expanded(path: str | Path) -> Path:
    """The path with ~ and ~name replaced. Raises BadInput for the home of somebody unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise BadInput(
            f"cannot use {str(path)!r}: there is no such user, or no home folder",
            expected="a path",
            hint=f"./{path} for a name that begins with ~",
        ) from exc


def resolved(path: Path) -> Path:
    """The path with all links followed. Raises BadInput for links that lead in a circle."""
    try:
        return _followed(path)
    except OSError as exc:
        raise BadInput(
            f"cannot use {str(path)!r}: {exc.strerror}", expected="a path that leads somewhere"
        ) from exc


def _followed(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError as exc:  # a circle of links, as Python before 3.13 says it
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from exc


def read_json_object(file: Path) -> dict[str, Any]:
    """What a JSON file of a model holds. Raises BadInput that names the file."""
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
