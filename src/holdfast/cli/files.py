"""Reading and writing the files a person names on the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole

ENDLESS = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def read_text(path: str) -> str:
    """The text of a file; raises BadInput with the system's reason."""
    refuse_endless(Path(path))
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise BadInput(f"cannot read {path!r}: {reason}", expected="a readable text file") from exc


def refuse_endless(path: Path) -> None:
    """Raise BadInput for a device that never ends: reading it would take all memory there is."""
    endless = False
    for device in ENDLESS:
        with contextlib.suppress(OSError, ValueError):  # whoever reads it says why
            endless = endless or path.samefile(device)
    if endless:
        raise BadInput(f"cannot read {str(path)!r}: it has no end", expected="a file")


def whole(text: str) -> int | None:
    """The whole number in a text, of up to 18 digits; None for all else."""
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def write_text(path: str, text: str) -> None:
    """Write a file whole or not at all; raises BadInput with the system's reason."""
    try:
        write_whole(Path(path), text)
    except OSError as exc:
        raise BadInput(
            f"cannot write {path!r}: {exc.strerror}", expected="a path in a folder that exists"
        ) from exc
