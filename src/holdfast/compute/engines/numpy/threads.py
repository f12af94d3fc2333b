"""The NumPy engine's threads: how many there are, and `share_out`, which divides a kernel's work.

`share_out` returns only when none of its threads runs any more, also after an error or Ctrl-C.
Inside of it BLAS runs on one thread. Unlike `base.threads`, these threads wait for the next call:
a call is often shorter than starting a thread. A forked process starts its own.
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
from holdfast.base.threads import register_at_fork
from holdfast.memory.hooks import import_hooks

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "", "_64_")


def set_num_threads(count: int) -> None:
    """Set how many threads kernels and BLAS use in this process. Raises BadInput."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BadInput(f"cannot compute with {count!r} threads", expected="a number from 1 on")
    _blas.count = count
    _blas.apply()


def get_num_threads() -> int:
    """How many threads a kernel may use; the default is BLAS's own choice."""
    if _blas.count is None:
        _blas.count = blas_threads() or _count_cpus()
    return _blas.count


def share_out(work: Callable[[int], object], count: int, parallel: bool = True) -> None:
    """Call `work` with 0, 1 … count - 1 on all threads, then raise the first error.

    Runs everything in the calling thread if `parallel` is false, or if called within `work`.
    """
    helpers = min(get_num_threads(), count) - 1 if parallel else 0
    if helpers < 1 or _here.busy:
        for number in range(count):
            work(number)
        return
    job = _Job(work, count)
    with single_blas():
        _team.submit(job, helpers)
        try:
            job.run()
        finally:
            job.finish()
    if job.failure is not None:
        raise job.failure


class _Here(threading.local):
    busy = False  # this thread runs `work` of a `share_out`


_here = _Here()


class _Job:
    """The calls of one `share_out`; each thread takes the next number that is left."""

    def __init__(self, work: Callable[[int], object], count: int) -> None:
        self.failure: BaseException | None = None
        self._work, self._count = work, count
        self._numbers = itertools.count()  # `next` on it is atomic
        self._lock = threading.Lock()
        self._helpers = 0
        self._closed = False
        self._over = threading.Event()

    def run(self) -> None:
        """Call `work` until no number is left."""
        _here.busy = True
        try:
            for number in self._numbers:
                if number >= self._count or self._closed:
                    return
                self._work(number)
        finally:
            _here.busy = False

    def help(self) -> None:
        """`run` in a helper thread; an error is kept for `share_out` to raise."""
        with self._lock:
            if self._closed:
                return
            self._helpers += 1
        try:
            with numpy.errstate(all="ignore"):  # as in the calling thread
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
        """Wait until no helper runs; Ctrl-C is raised only then."""
        with self._lock:
            self._closed = True
            if not self._helpers:
                return
        interrupt: KeyboardInterrupt | None = None
        while not self._over.is_set():
            try:
                self._over.wait()
            except KeyboardInterrupt as exc:  # helpers still write into the caller's arrays
                interrupt = exc
        if interrupt is not None:
            raise interrupt


class _Team:
    """Daemon threads that wait for jobs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, job: _Job, helpers: int) -> None:
        """Let up to `helpers` threads work on a job; fewer if threads cannot be started."""
        with self._lock, contextlib.suppress(RuntimeError):  # the system has no more threads
            while len(self._threads) < helpers:
                name = f"holdfast compute {len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        for _ in range(helpers):
            self._jobs.put(job)

    def end(self) -> None:
        """Wait until every thread has finished its job and ended; `submit` starts new ones."""
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
import_hooks.before_watch(lambda: _team.end())


# ---- BLAS


def blas_threads() -> int | None:
    """How many threads NumPy's OpenBLAS uses; None if NumPy has another BLAS."""
    blas = _openblas()
    return int(blas[1]()) if blas else None


class _BlasState:
    """The number of threads set, and how many `single_blas` blocks are open."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.shared = 0
        self.lock = threading.Lock()

    def apply(self) -> None:
        """Set BLAS's number of threads."""
        blas = _openblas()
        if blas:
            blas[0](1 if self.shared else get_num_threads())


_blas = _BlasState()


@contextlib.contextmanager
def single_blas() -> Iterator[None]:
    """Run BLAS on one thread until the last such block is left."""
    get_num_threads()  # reads BLAS's default before it is changed
    with _blas.lock:
        _blas.shared += 1
        if _blas.shared == 1:
            _blas.apply()
    try:
        yield
    finally:
        with _blas.lock:
            _blas.shared -= 1
            if not _blas.shared:
                _blas.apply()


@functools.cache
def _openblas() -> tuple[Any, Any] | None:
    """OpenBLAS's setter and getter of its number of threads."""
    root = Path(numpy.__file__).parent
    folders = (root.parent / "numpy.libs", root / ".dylibs", root / ".libs")
    for path in (p for f in folders if f.is_dir() for p in sorted(f.glob("*openblas*"))):
        with contextlib.suppress(OSError):
            library: Any = ctypes.CDLL(str(path))  # the one that NumPy has loaded
            for prefix, suffix in itertools.product(_PREFIXES, _SUFFIXES):
                setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                getter = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                if setter is not None and getter is not None:
                    setter.argtypes, setter.restype = [ctypes.c_int], None
                    getter.argtypes, getter.restype = [], ctypes.c_int
                    return setter, getter
    return None


def _count_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _after_fork() -> None:
    """A forked process has none of the threads, and a lock may be held by one of them."""
    global _team
    _team = _Team()
    _here.busy = False
    _blas.lock, _blas.shared = threading.Lock(), 0


register_at_fork(after_in_child=_after_fork)


class Scratch(threading.local):
    """Buffers of one thread, reused by its next call. They are not taken from the pool."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def of(self, count: int, kind: Any = numpy.float32, which: int = 0) -> Any:
        """An array of `count` elements; buffers used at the same time differ in `which`."""
        found = self._kept.get((kind, which))
        if found is None or found.size < count:
            memory = bytearray(max(count, 1) * numpy.dtype(kind).itemsize)
            found = self._kept[kind, which] = numpy.frombuffer(memory, kind)
        return found[:count]


scratch = Scratch()
