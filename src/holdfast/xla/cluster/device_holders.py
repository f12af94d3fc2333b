"""Which processes have a TPU or GPU open, read from /proc and the lock file of libtpu.

Never raises; processes of other users whose files cannot be read are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LOCK_FILE = "/tmp/libtpu_lockfile"
TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*", LOCK_FILE)
GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd")
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
    matching = (path for pattern in files for path in Path("/").glob(pattern.lstrip("/")))
    wanted = {str(path.resolve()) for path in matching}
    found = []
    for pid in psutil.pids():
        file = next((file for file in _open_files(pid) if file in wanted), None)
        if file is not None and pid != os.getpid():
            found.append(holder(pid, file))
    return tuple(found)


def holder(pid: int, file: str | None = None) -> Holder:
    """What can be read about one process; another user's command can be, its files cannot."""
    command = user = None
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        user = process.username()
        text = " ".join(" ".join(process.cmdline()).split())
        command = (text if len(text) <= _MOST else f"{text[: _MOST - 1]}…") or None
    return Holder(pid, command, user, file)


def _open_files(pid: int) -> Iterator[str]:
    """From /proc: psutil leaves devices out."""
    with suppress(OSError):
        for link in list(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(OSError):  # closed meanwhile
                yield str(link.readlink())
