"""Reads files into the page cache while something else is done, such as importing torch.

Reads into a buffer that nobody looks at: Linux reads only a few pages for each request to read
ahead, and a thread that makes many small requests waits for Python's lock each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock, Thread

from holdfast.topology.control_groups import memory_left
from holdfast.topology.sysfs import read_memory

PIECE_BYTES = 16 << 20
THREADS = 4


def prefetch(files: Sequence[Path]) -> list[Thread]:
    """Start reading `files`, in this order, as far as half of the free memory goes.

    Nothing depends on it: errors are ignored, and the threads end with the process. Linux only;
    elsewhere no thread is started.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return []
    free = read_memory(Path("/proc/meminfo")).get("MemAvailable", 0)
    left = memory_left()
    pieces = _pieces(files, (free if left is None else min(free, left)) // 2)
    lock = Lock()
    threads = [
        Thread(target=_read, args=(pieces, lock), name=f"holdfast-prefetch-{number}", daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    return threads


def _pieces(files: Sequence[Path], most: int) -> Iterator[tuple[Path, int, int]]:
    for file in files:
        size = min(file.stat().st_size, most)
        for start in range(0, size, PIECE_BYTES):
            yield file, start, min(PIECE_BYTES, size - start)
        most -= size


def _read(pieces: Iterator[tuple[Path, int, int]], lock: Lock) -> None:
    buffer = bytearray(PIECE_BYTES)
    with contextlib.suppress(OSError):
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            file, start, length = piece
            with file.open("rb", buffering=0) as opened:
                if not _is_cached(opened.fileno(), start + length - 1):
                    os.preadv(opened.fileno(), [memoryview(buffer)[:length]], start)


def _is_cached(file: int, offset: int) -> bool:
    try:
        return os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:  # BlockingIOError, or a file system that cannot say
        return False
