"""Reads files into the page cache while something else is done, such as importing torch."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast.topology.control_groups import memory_left
from holdfast.topology.sysfs import read_memory

PIECE_BYTES = 16 << 20


def prefetch(files: Sequence[Path]) -> threading.Thread | None:
    """Start reading `files`, in this order, as far as half of the free memory goes.

    Nothing depends on it: errors are ignored, and the thread ends with the process. Returns None on
    systems that cannot do this.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    free = read_memory(Path("/proc/meminfo")).get("MemAvailable", 0)
    left = memory_left()
    most = (free if left is None else min(free, left)) // 2
    thread = threading.Thread(
        target=_read, args=(list(files), most), name="holdfast-prefetch", daemon=True
    )
    thread.start()
    return thread


def _read(files: list[Path], most: int) -> None:
    with contextlib.suppress(OSError):
        for file in files:
            with file.open("rb", buffering=0) as opened:
                size = min(os.fstat(opened.fileno()).st_size, most)
                for start in range(0, size, PIECE_BYTES):  # each call waits for earlier ones
                    length = min(PIECE_BYTES, size - start)
                    os.posix_fadvise(opened.fileno(), start, length, os.POSIX_FADV_WILLNEED)
            most -= size
