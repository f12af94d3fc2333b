"""How many threads the NumPy engine uses, and the team that shares its work.

Covers: one number for all (`set_num_threads`), the threads inside the BLAS that NumPy carries, a
team that stays.  Leaves to others: what is worth sharing (each kernel).
Promise: `share_out` returns only when no thread works for it any more, also after an error or
Ctrl-C; inside of it BLAS runs on one thread, so that threads do not multiply; a process that was
forked starts with a team of its own.

The threads of `base.threads` end with their block. These wait for the next call instead, for a
call is often shorter than starting a thread takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.memory import hooks

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "", "_64_")


def set_num_threads(count: int) -> None:
    """Use so many threads from now on, in every thread of this process. Raises BadInput."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BadInput(f"cannot compute with {count!r} threads", expected="a number from 1 on")
    _state.count = count
    _state.settle()


def get_num_threads() -> int:
    """How many threads a kernel may use: what BLAS has found, until it is set."""
    if _state.count is None:
        _state.count = blas_threads() or len(_usable_cpus())
    return _state.count


def share_out(work: Callable[[int], object], count: int) -> None:
    """Call `work` with 0, 1 … count - 1, on all threads. The first error is raised, at the end.

    Within `work`, `share_out` runs everything in the thread it is called in.
    """
    helpers = min(get_num_threads(), count) - 1
    if helpers < 1 or _here.busy:
        for number in range(count):
            work(number)
        return
    job = _Job(work, count)
    with single_blas():
        _team.ask(job, helpers)
        try:
            job.run()
        finally:
            job.finish()
    if job.failure is not None:
        raise job.failure


class _Here(threading.local):
    busy = False  # this thread is at work for a `share_out`


_here = _Here()


class _Job:
    """Numbers to be worked through by whoever has time."""

    def __init__(self, work: Callable[[int], object], count: int) -> None:
        self.failure: BaseException | None = None
        self._work, self._count = work, count
        self._numbers = itertools.count()  # `next` is one step for all threads
        self._lock = threading.Lock()
        self._helpers = 0
        self._closed = False
        self._over = threading.Event()

    def run(self) -> None:
        """Do numbers until none is left."""
        _here.busy = True
        try:
            for number in self._numbers:
                if number >= self._count or self._closed:
                    return
                self._work(number)
        finally:
            _here.busy = False

    def help(self) -> None:
        """`run` for a thread of the team; it keeps its error for the one who asked."""
        with self._lock:
            if self._closed:
                return
            self._helpers += 1
        try:
            with numpy.errstate(all="ignore"):  # as kernels have it where they are called
                self.run()
        except BaseException as exc:  # noqa: BLE001  (raised by `share_out`)
            self.failure = self.failure or exc
            self._closed = True
        finally:
            with self._lock:
                self._helpers -= 1
                if self._closed and not self._helpers:
                    self._over.set()

    def finish(self) -> None:
        """Wait until no helper is at work; Ctrl-C waits with it."""
        with self._lock:
            self._closed = True
            if not self._helpers:
                return
        interrupt: KeyboardInterrupt | None = None
        while not self._over.is_set():
            try:
                self._over.wait()
            except KeyboardInterrupt as exc:  # helpers still write where the caller would go on
                interrupt = exc
        if interrupt is not None:
            raise interrupt


class _Team:
    """Threads that wait for jobs; they end with the process, or when they are told."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def ask(self, job: _Job, helpers: int) -> None:
        """Have up to `helpers` threads look at a job; it is done without those that cannot be."""
        with self._lock, contextlib.suppress(RuntimeError):  # the system has no more threads
            while len(self._threads) < helpers:
                name = f"holdfast compute {len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        for _ in range(helpers):
            self._jobs.put(job)

    def end(self) -> None:
        """Wait until every thread has done its job and ended; the next `ask` starts new ones."""
        with self._lock:
            ending, self._threads = self._threads, []
            for _ in ending:
                self._jobs.put(None)
            for thread in ending:
                thread.join()

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job.help()


_team = _Team()
hooks.before_watch(lambda: _team.end())


# ---- BLAS


def blas_threads() -> int | None:
    """How many threads NumPy's OpenBLAS uses; None where NumPy has another BLAS."""
    blas = _openblas()
    return int(blas[1]()) if blas else None


class _State:
    """The number that was set, and how many calls have BLAS on one thread at present."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.shared = 0
        self.lock = threading.Lock()

    def settle(self) -> None:
        """Give BLAS the threads it should have."""
        blas = _openblas()
        if blas:
            blas[0](1 if self.shared else get_num_threads())


_state = _State()


@contextlib.contextmanager
def single_blas() -> Iterator[None]:
    """BLAS runs on one thread until the last block of this kind is left."""
    get_num_threads()  # what BLAS has found is asked before it is changed
    with _state.lock:
        _state.shared += 1
        if _state.shared == 1:
            _state.settle()
    try:
        yield
    finally:
        with _state.lock:
            _state.shared -= 1
            if not _state.shared:
                _state.settle()


@functools.cache
def _openblas() -> tuple[Any, Any] | None:
    """OpenBLAS's functions that set and tell its number of threads."""
    root = Path(numpy.__file__).parent
    folders = (root.parent / "numpy.libs", root / ".dylibs", root / ".libs")
    for path in (p for f in folders if f.is_dir() for p in sorted(f.glob("*openblas*"))):
        with contextlib.suppress(OSError):
            library: Any = ctypes.CDLL(str(path))  # the one that NumPy has loaded
            for prefix, suffix in itertools.product(_PREFIXES, _SUFFIXES):
                change = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                tell = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                if change is not None and tell is not None:
                    change.argtypes, change.restype = [ctypes.c_int], None
                    tell.argtypes, tell.restype = [], ctypes.c_int
                    return change, tell
    return None


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _after_fork() -> None:
    """Threads do not follow into a forked process, and a lock may have been held by one."""
    global _team
    _team = _Team()
    _here.busy = False
    _state.lock, _state.shared = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Scratch(threading.local):
    """Room for a thread alone, which stays for its next call. It is no part of the pool."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def of(self, count: int, kind: Any = numpy.float32, which: int = 0) -> Any:
        """An array of `count` numbers; `which` tells several apart that are used at once."""
        found = self._kept.get((kind, which))
        if found is None or found.size < count:
            room = bytearray(max(count, 1) * numpy.dtype(kind).itemsize)
            found = self._kept[kind, which] = numpy.frombuffer(room, kind)
        return found[:count]


scratch = Scratch()
