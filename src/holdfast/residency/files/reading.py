"""Reads byte ranges of files into existing memory with several threads.

An interrupt is raised in the calling thread within 100 ms (on a disk of 10 MB/s or more); by then
all threads have ended and all files are closed. Calling `run()` again reads the rest.

One thread neither saturates a fast disk nor copies from the page cache at memory speed. No
O_DIRECT: a model loaded twice should come from the page cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.errors import BadInput, Misuse
from holdfast.base.threads import Team
from holdfast.base.units import format_bytes

PIECE_BYTES = 4 << 20
MOST_BUFFERS = 512  # of one read; systems take 1024
MOST_THREADS = 8
SMALLEST_BYTES, LARGEST_BYTES = 64 << 10, PIECE_BYTES  # of one system call
SLOW_S, QUICK_S = 0.02, 0.002  # after a slower call the next is half as large; a faster, twice
PAUSE_S = 0.02  # between two calls of the caller's `check`

Progress = Callable[[int, int], object]
Check = Callable[[], object]
Sink = Callable[[int, memoryview], object]


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` bytes of a file from `offset` on, and their destination.

    `target` is a writable buffer of that size or a contiguous uint8 tensor in host memory. If it is
    None, `sink(at, view)` is called by any thread, in any order, once for each piece; `at` is its
    offset in this range, a multiple of PIECE_BYTES. `view` is valid during the call only.
    """

    path: Path
    offset: int
    nbytes: int
    target: Any = None
    sink: Sink | None = None


def read_into(
    parts: Sequence[FileRange],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    check: Check | None = None,
) -> None:
    """Read all parts into their targets; see `Reading`."""
    Reading(parts, threads=threads).run(progress=progress, check=check)


class Reading:
    """A read of several parts that can be interrupted and resumed."""

    def __init__(self, parts: Sequence[FileRange], *, threads: int | None = None) -> None:
        self._parts = tuple(parts)  # the views of the pieces do not keep a tensor alive
        self._pieces = _pieces(parts)
        self._threads = threads or default_threads()
        self._seen: dict[Path, tuple[int, ...]] = {}
        self._lock = threading.Lock()  # held while run() runs
        self.total_bytes = sum(part.nbytes for part in parts)

    @property
    def done_bytes(self) -> int:
        """Bytes read so far."""
        return sum(piece.done for piece in self._pieces)

    @property
    def is_done(self) -> bool:
        """Whether everything was read."""
        return all(piece.done == piece.nbytes for piece in self._pieces)

    def run(self, *, progress: Progress | None = None, check: Check | None = None) -> None:
        """Read what was not read yet.

        `progress(done_bytes, total_bytes)` and `check()` are called in this thread about every
        20 ms; their exceptions end the read, as Ctrl-C does. The last progress is (total, total).
        Raises BadInput for a file that cannot be read, is too short or has changed since the first
        run; Misuse if another thread is in `run`.
        """
        if not self._lock.acquire(blocking=False):
            raise Misuse("these parts are being read already", expected="one run() at a time")
        try:
            self._run(progress or (lambda *_: None), check or (lambda: None))
        finally:
            self._lock.release()

    def _run(self, progress: Progress, check: Check) -> None:
        check()
        waiting = deque(piece for piece in self._pieces if piece.done < piece.nbytes)
        with contextlib.ExitStack() as stack:
            files = _Files(stack, self._seen)
            for path in dict.fromkeys(piece.path for piece in waiting):
                files.open(path)
            crew = _Crew(waiting, files, min(self._threads, len(waiting)))
            with Team() as team, crew:
                for _ in range(crew.size):
                    team.start(crew.work)
                while not crew.over.wait(PAUSE_S):
                    check()
                    progress(self.done_bytes, self.total_bytes)
            if crew.error is not None:
                raise crew.error
        progress(self.done_bytes, self.total_bytes)


def default_threads() -> int:
    """Two for each CPU this process may use, eight at most."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST_THREADS, 2 * (count or 1))


# ---- pieces


@dataclass(slots=True, eq=False)
class _Piece:
    """What one thread reads at a time: contiguous bytes of a file."""

    path: Path
    offset: int
    nbytes: int
    views: list[memoryview]  # destinations in order; empty if there is a sink
    sink: Sink | None = None
    at: int = 0  # passed to the sink
    done: int = 0


def _pieces(parts: Sequence[FileRange]) -> list[_Piece]:
    first = {path: at for at, path in enumerate(dict.fromkeys(part.path for part in parts))}
    ordered = sorted(parts, key=lambda part: (first[part.path], part.offset))
    return _join([piece for part in ordered for piece in _cut(part)])


def _cut(part: FileRange) -> Iterator[_Piece]:
    view = _view(part) if part.sink is None else None
    for at in range(0, part.nbytes, PIECE_BYTES):
        length = min(PIECE_BYTES, part.nbytes - at)
        views = [view[at : at + length]] if view is not None else []
        yield _Piece(part.path, part.offset + at, length, views, part.sink, at)


def _join(pieces: list[_Piece]) -> list[_Piece]:
    """Join small adjacent pieces: models have a thousand tensors of a few kilobytes."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined and joined[-1].sink is None and piece.sink is None else None
        if (
            last is not None
            and last.path == piece.path
            and last.offset + last.nbytes == piece.offset
            and last.nbytes + piece.nbytes <= PIECE_BYTES
            and len(last.views) < MOST_BUFFERS
        ):
            last.views += piece.views
            last.nbytes += piece.nbytes
        else:
            joined.append(piece)
    return joined


def view_bytes(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in host memory; the view does not keep them alive."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def _view(part: FileRange) -> memoryview:
    target = part.target
    if hasattr(target, "data_ptr"):  # a tensor; this avoids importing torch
        if not (target.device.type == "cpu" and target.is_contiguous()):
            raise _bad_target(part, "a tensor that is not contiguous host memory")
        view = view_bytes(target)
    else:
        try:
            view = memoryview(target).cast("B")
        except TypeError as exc:
            raise _bad_target(part, f"a {type(target).__name__}") from exc
        if view.readonly:
            raise _bad_target(part, "a buffer that cannot be written to")
    if view.nbytes != part.nbytes:
        raise _bad_target(part, f"{view.nbytes} B for {part.nbytes} B")
    return view


def _bad_target(part: FileRange, what: str) -> BadInput:
    return BadInput(
        f"cannot read {str(part.path)!r} into {what}",
        expected="a writable, contiguous buffer or tensor in host memory, as large as the part",
    )


# ---- files


class _File(NamedTuple):
    descriptor: int
    lock: threading.Lock  # for systems without preadv


class _Files:
    """Files opened once each; the exit stack closes them."""

    def __init__(self, stack: contextlib.ExitStack, seen: dict[Path, tuple[int, ...]]) -> None:
        self._stack, self._seen = stack, seen
        self._open: dict[Path, _File] = {}

    def open(self, path: Path) -> None:
        """Open a file. Raises BadInput if that fails or the file changed since the last run."""
        try:
            file = self._stack.enter_context(path.open("rb", buffering=0))
        except OSError as exc:
            raise _unreadable(path, exc) from exc
        about = os.fstat(file.fileno())
        identity = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
        if self._seen.setdefault(path, identity) != identity:
            raise BadInput(
                f"cannot go on reading {str(path)!r}: the file has changed since",
                expected="the file that was begun",
                hint="load the model from the start",
            )
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # a pipe, or a file system without support
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._open[path] = _File(file.fileno(), threading.Lock())

    def read(self, piece: _Piece, views: list[memoryview], done: int) -> int:
        """Read once at byte `done` of a piece; returns the bytes read, at least 1."""
        file, offset = self._open[piece.path], piece.offset + done
        try:
            count = _read_at(file, views, offset)
        except OSError as exc:
            raise _unreadable(piece.path, exc) from exc
        if not count:
            size = os.fstat(file.descriptor).st_size
            raise BadInput(
                f"cannot read weights {str(piece.path)!r}: it ends after {format_bytes(size)}",
                expected=f"more than {offset} B: a whole file",
                hint="download or copy it again",
            )
        return count


def _read_at(file: _File, views: list[memoryview], offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file.descriptor, views, offset)
    with file.lock:
        os.lseek(file.descriptor, offset, os.SEEK_SET)
        data = os.read(file.descriptor, views[0].nbytes)
    views[0][: len(data)] = data
    return len(data)


def _unreadable(path: Path, exc: OSError) -> BadInput:
    return BadInput(
        f"cannot read weights {str(path)!r}: {exc.strerror}", expected="a readable file"
    )


# ---- threads


class _Crew(contextlib.AbstractContextManager["_Crew"]):
    """State shared by the reading threads. Leaving the block stops them soon."""

    def __init__(self, waiting: deque[_Piece], files: _Files, size: int) -> None:
        self._waiting, self._files = waiting, files
        self._lock = threading.Lock()
        self._working = self.size = size
        self._stop = False
        self.error: BaseException | None = None  # the first one
        self.over = threading.Event()
        if not size:
            self.over.set()

    def __exit__(self, *_: object) -> None:
        self._stop = True

    def work(self) -> None:
        pace = _Pace()
        try:
            while not self._stop:
                self._read(self._waiting.popleft(), pace)
        except IndexError:
            pass  # no pieces left
        except BaseException as exc:  # noqa: BLE001  raised in the calling thread
            self._stop = True
            self.error = self.error or exc
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self.over.set()

    def _read(self, piece: _Piece, pace: _Pace) -> None:
        views = piece.views or [pace.scratch(piece.nbytes)]
        done = piece.done
        while done < piece.nbytes:
            if self._stop:
                return
            begun = time.perf_counter()
            done += self._files.read(piece, _window(views, done, pace.step_bytes), done)
            pace.adjust(time.perf_counter() - begun)
            if piece.sink is None:
                piece.done = done
        if piece.sink is not None:
            piece.sink(piece.at, views[0])
            piece.done = done


class _Pace:
    """How much one thread reads per system call, as a call cannot be interrupted."""

    def __init__(self) -> None:
        self.step_bytes = 1 << 20
        self._scratch: memoryview | None = None

    def adjust(self, seconds: float) -> None:
        if seconds > SLOW_S:
            self.step_bytes = max(SMALLEST_BYTES, self.step_bytes // 2)
        elif seconds < QUICK_S:
            self.step_bytes = min(LARGEST_BYTES, self.step_bytes * 2)

    def scratch(self, nbytes: int) -> memoryview:
        """A buffer of this thread, reused for each piece."""
        if self._scratch is None:
            # Not malloc: memory that a thread frees there may never return to the system.
            self._scratch = memoryview(mmap.mmap(-1, PIECE_BYTES))
        return self._scratch[:nbytes]


def _window(views: list[memoryview], at: int, length: int) -> list[memoryview]:
    """At most `length` bytes of the concatenated views, from byte `at` on."""
    found = []
    for view in views:
        if at < view.nbytes and length > 0:
            found.append(view[at : at + length])
            length -= found[-1].nbytes
        at = max(0, at - view.nbytes)
    return found
