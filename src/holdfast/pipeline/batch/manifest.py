"""The append-only record of a batch: JSON lines, synced to disk before `append` returns.

A torn last line is cut off at the next opening; nothing else is ever removed, and only from a file
that is certainly ours. The file is locked: one process at a time, released when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput, Unsupported

NAME = "manifest.jsonl"
VERSION = 1
_START = b'{"event": "'
# Beyond the end of the file: Windows does not let others read locked bytes.
_LOCKED_BYTE = 2**40


class Manifest(contextlib.AbstractContextManager["Manifest"]):
    """The records of a folder. `damaged` counts unreadable lines, which are skipped.

    Raises Unsupported while another process has it open, BadInput for a file that is not ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.damaged = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o666)
        try:
            if not _lock(self._file):
                raise self._in_use()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, event: str, **values: Any) -> None:
        """Append a record and sync it to disk. Raises OSError."""
        record = {"event": event, "at": datetime.now(UTC).isoformat(timespec="seconds"), **values}
        data = json.dumps(record).encode() + b"\n"
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)
        self.records.append(record)

    def begin(self, **values: Any) -> None:
        """Append the record of a new run, with pid and host."""
        self.append("run", version=VERSION, pid=os.getpid(), host=socket.gethostname(), **values)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        torn = content[len(whole) :]
        self.records, self.damaged = parse(whole)
        ours = bool(self.records) or _START.startswith(torn[: len(_START)])
        if not ours or (whole and not self.records):
            raise BadInput(
                f"cannot use {str(self.path)!r}: it is not a manifest of `holdfast batch`",
                expected="an output folder of its own",
                hint="another --out, or move that file away",
            )
        version = max((r["version"] for r in self.records if r["event"] == "run"), default=VERSION)
        if version > VERSION:
            raise BadInput(
                f"cannot use {str(self.path)!r}: its version is {version}",
                expected=f"version {VERSION}",
                hint="a newer Holdfast, or another --out",
            )
        if torn:
            os.ftruncate(self._file, len(whole))
            os.fsync(self._file)

    def _in_use(self) -> Unsupported:
        runs = [r for r in parse(self.path.read_bytes())[0] if r["event"] == "run"]
        who = f"process {runs[-1]['pid']} on {runs[-1]['host']}" if runs else "another process"
        return Unsupported(
            f"cannot use the folder {str(self.path.parent)!r}: {who} is working in it",
            expected="one batch at a time in a folder",
            hint="wait until it is over, or another --out",
        )


def parse(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """Parse the records; also returns the number of lines that are not records."""
    lines = content.splitlines(keepends=True)
    records = [record for line in lines if (record := _record(line)) is not None]
    return records, len(lines) - len(records)


_NEEDED = {
    "run": {"version": int, "pid": int, "host": str},
    "done": {"job": str, "file": str},
    "failed": {"job": str, "reason": str},
}


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    needed = _NEEDED.get(str(record.get("event"))) if isinstance(record, dict) else None
    if needed is None or not line.endswith(b"\n"):
        return None
    whole = all(type(record.get(name)) is wanted for name, wanted in needed.items())
    return record if whole else None


if sys.platform == "win32":
    import msvcrt

    _BINARY = os.O_BINARY

    def _lock(file: int) -> bool:
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    _BINARY = 0

    def _lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
