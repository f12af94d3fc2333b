from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from threading import Thread

import pytest

from holdfast.residency.files import prefetch as module
from holdfast.residency.files.prefetch import prefetch

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="Linux only")


def cached_bytes(file: Path) -> int:
    """How much of a file is in the page cache."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        first = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        status = libc.mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), found)
        del first
        assert status == 0
        return sum(one & 1 for one in found) * mmap.PAGESIZE


def finish(threads: list[Thread]) -> None:
    assert threads
    for thread in threads:
        thread.join()


def uncached(folder: Path, megabytes: int) -> Path:
    """A file that is not in the page cache; skips where the file system keeps it there."""
    file = folder / "weights"
    with file.open("wb") as opened:
        opened.write(os.urandom(megabytes << 20))
        opened.flush()
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(file):
        pytest.skip("this file system keeps files in memory")
    return file


def test_a_file_is_in_the_page_cache_afterwards(tmp_path: Path) -> None:
    file = uncached(tmp_path, 40)
    finish(prefetch([file]))
    assert cached_bytes(file) == 40 << 20


def test_no_more_is_read_than_half_of_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = uncached(tmp_path, 40)
    monkeypatch.setattr(module, "read_memory", lambda _: {"MemAvailable": 16 << 20})
    finish(prefetch([file, file]))
    assert cached_bytes(file) <= 16 << 20  # 8 MB, and what the kernel reads ahead


def test_a_file_that_is_gone_does_not_matter(tmp_path: Path) -> None:
    finish(prefetch([tmp_path / "gone"]))
