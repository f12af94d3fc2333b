"""Which processes have a TPU or GPU open, read from /proc and the lock file of libtpu.

Never raises; processes of other users whose files cannot be read are left out.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = "/tmp/libtpu_lockfile"
TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*", LOCK_FILE)
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd")
_PROC = Path("/proc")
_MOST = 100  # characters of a command that are shown


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has one of the files open. Unknown is None."""

    pid: int
    command: str | None
    user: str | None
    file: str | None

    def __str__(self) -> str:
        known = [self.command, f"user {self.user}" if self.user else None]
        details = ", ".join(text for text in known if text)
        return f"process {self.pid}" + (f" ({details})" if details else "")


def holders(files: Sequence[str] = TPU_FILES) -> tuple[Holder, ...]:
    """All other processes that have a file open which one of these patterns names."""
    wanted = {str(path.resolve()) for pattern in files for path in _matching(pattern)}
    found = []
    for pid in _pids():
        file = next((file for file in _open_files(pid) if file in wanted), None)
        if file is not None and pid != os.getpid():
            found.append(holder(pid, file))
    return tuple(found)


def holder(pid: int, file: str | None = None) -> Holder:
    """What can be read about one process; another user's command can be, its files cannot."""
    return Holder(pid, _command(pid), _user(pid), file)


def _matching(pattern: str) -> Iterator[Path]:
    path = Path(pattern)
    return Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def _pids() -> list[int]:
    try:
        return sorted(int(one.name) for one in _PROC.iterdir() if one.name.isdigit())
    except OSError:
        return []


def _open_files(pid: int) -> Iterator[str]:
    try:
        links = list((_PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield str(link.readlink())
        except OSError:  # closed meanwhile
            continue


def _command(pid: int) -> str | None:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    text = " ".join(b" ".join(words).decode(errors="replace").split())
    return (text if len(text) <= _MOST else f"{text[: _MOST - 1]}…") or None


def _user(pid: int) -> str | None:
    try:
        owner = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
