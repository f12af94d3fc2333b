"""Reads and writes files named on the command line; parses integers."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole

ENDLESS = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def read_text(path: str) -> str:
    """The text of a file. Raises BadInput with the system's reason."""
    refuse_endless(Path(path))
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise BadInput(f"cannot read {path!r}: {reason}", expected="a readable text file") from exc


def refuse_endless(path: Path) -> None:
    """Raise BadInput for a device without an end: reading it would fill the memory."""
    endless = False
    for device in ENDLESS:
        with contextlib.suppress(OSError, ValueError):  # the reader reports it
            endless = endless or path.samefile(device)
    if endless:
        raise BadInput(f"cannot read {str(path)!r}: it has no end", expected="a file")


def parse_integer(text: str) -> int | None:
    """The integer in a text of up to 18 digits; None for other text."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically. Raises BadInput with the system's reason."""
    try:
        write_whole(Path(path), content)
    except OSError as exc:
        raise unwritable(path, exc) from exc


def unwritable(path: str | Path, exc: OSError) -> BadInput:
    """The error for a file that cannot be written."""
    return BadInput(
        f"cannot write {str(path)!r}: {exc.strerror}", expected="a path in a folder that exists"
    )
