"""Reading and writing the files a person names on the command line."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole


def read_text(path: str) -> str:
    """The text of a file; raises BadInput with the system's reason."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise BadInput(f"cannot read {path!r}: {reason}", expected="a readable text file") from exc


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; raises BadInput with the system's reason."""
    try:
        write_whole(Path(path), text)
    except OSError as exc:
        raise BadInput(
            f"cannot write {path!r}: {exc.strerror}", expected="a path in a folder that exists"
        ) from exc
