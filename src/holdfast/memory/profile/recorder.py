"""`Recorder` records what happens to memory while something runs, on one time axis.

torch and NumPy are never imported from here. Leaving by an error or Ctrl-C removes all hooks. The
notes of a recording say what could not be watched.

Sources:
  pool    every block of every pool; older blocks count as allocated at the start
  numpy   the data of arrays, of this thread and of threads that start meanwhile
  torch   tensors on the CPU (needs a C++ compiler) and on CUDA
  python  the bytes of Python's own objects as a series, and in the notes the lines that hold most
          of them at the end; by tracemalloc, which can make a program that makes many small
          objects ten times slower
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from holdfast.base.errors import BadInput, HoldfastError, Misuse, Unsupported
from holdfast.base.threads import register_at_fork, renew_in_child
from holdfast.base.units import format_bytes
from holdfast.memory.core import native_build, stacks, tags
from holdfast.memory.core.pool_core import USED
from holdfast.memory.hooks import import_hooks, numpy_handler, torch_cpu
from holdfast.memory.pools import pool
from holdfast.memory.profile import samples
from holdfast.memory.profile.recording import COLUMNS, Event, Frame, Kind, MemoryPlace, Recording
from holdfast.memory.profile.torch_cuda_trace import CudaTrace, merge, sort_events

SOURCES = ("pool", "numpy", "torch", "python")
DEFAULT_SOURCES = ("pool", "numpy", "torch")
LIMIT = 20_000_000  # events
LEAST_BYTES = 512  # of NumPy's and torch's blocks; smaller ones are many but add up to little
_TOP = 10  # lines of Python in the notes
_FOLDER = str(Path(__file__).parents[1])

_active: Recorder | None = None
_active_lock = renew_in_child(threading.Lock())


class Recorder:
    """Records from `start` to `stop`, or inside a `with` block. One at a time in a process."""

    def __init__(
        self,
        sources: Iterable[str] = DEFAULT_SOURCES,
        depth: int = 16,
        title: str = "",
        *,
        least: int = LEAST_BYTES,
        limit: int = LIMIT,
    ) -> None:
        self.sources = (sources,) if isinstance(sources, str) else tuple(sources)
        if depth < 0:
            raise BadInput(f"cannot keep {depth} frames of a stack", expected="0 or more")
        for source in self.sources:
            if source not in SOURCES:
                raise BadInput(f"cannot record {source!r}", expected=f"some of {list(SOURCES)}")
        self.depth, self.title, self.least, self.limit = depth, title, least, limit
        self.recording: Recording | None = None  # once stopped
        self.running = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- start and stop

    def start(self) -> None:
        """Start. Raises Misuse while a recorder runs, this one or another."""
        global _active
        with _active_lock:
            if _active is not None:
                raise Misuse(
                    "memory is being recorded already",
                    expected="one recorder at a time",
                    hint="stop the other one first; enable_memory_profiling(False) stops that one",
                )
            _active = self
        self._cleanup = contextlib.ExitStack()
        try:
            self._prepare()
            self._watch()
        except BaseException:
            self._uninstall()
            raise

    def _prepare(self) -> None:
        self.recording = None
        self._pid = os.getpid()
        self._places: list[MemoryPlace] = []
        self._notes: list[str] = []
        self._before: list[Event] = []
        self._cuda = CudaTrace()
        self._kept_switches: list[tuple[int, int]] = []
        self._log: Any = native_build.core().Log(self.depth, _FOLDER)
        self._compiled = hasattr(self._log, "functions")  # for NumPy and torch
        self._started_s = time.time() - (time.monotonic_ns() - self._log.started_ns) / 1e9
        self._ended_ns: int | None = None
        self.running = True

    def _watch(self) -> None:
        readers: dict[str, Callable[[], int]] = {"rss": samples.rss_bytes}
        if "python" in self.sources:
            if not tracemalloc.is_tracing():
                self._install(tracemalloc.start, tracemalloc.stop)
            readers["python"] = lambda: tracemalloc.get_traced_memory()[0]
        self._sampler = samples.Sampler(readers, self._log.started_ns, self._check_limit)
        self._install(self._sampler.start, self._sampler.stop)
        if "torch" in self.sources:
            self._after_import("torch", self._watch_torch, "torch's CPU memory")
        if "numpy" in self.sources:
            self._after_import("numpy", self._watch_numpy, "NumPy's memory")
        if "pool" in self.sources:
            watch = functools.partial(pool.watch_pools, self._log, self._place_of)
            self._install(watch, lambda: pool.watch_pools(None))
            self._add_existing_blocks()

    def _install(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """Call `begin`; `end` is registered before, as Ctrl-C may interrupt `begin`."""
        self._cleanup.callback(end)
        begin()

    def stop(self) -> Recording:
        """Stop and return the recording; the same one if called again."""
        if self.recording is None and not self.running:
            raise Misuse("this recorder was not started", expected="start() before stop()")
        if self.recording is None:
            try:
                self._log.on = 0
                self._sampler.stop()  # the rest is our own work
                self._ended_ns = time.monotonic_ns()
                self._note_python()
            finally:
                self._uninstall()
            self.recording = self._assemble()
            self._log.close()  # the C hooks keep the log alive forever
        return self.recording

    def now_ns(self) -> int:
        """Nanoseconds since the start, on the time axis of the recording."""
        return time.monotonic_ns() - self._log.started_ns

    def so_far(self) -> Recording:
        """A copy of what was recorded so far; recording goes on."""
        if self.recording is not None:
            return self.recording
        if self.running:
            self._sampler.sample()
        return self._assemble()

    def _uninstall(self) -> None:
        global _active
        try:
            self._cleanup.close()
        finally:
            self.running = False
            if _active is self:
                _active = None

    def stop_in_child(self) -> None:
        """In the child of a fork: stop writing, without the locks that other threads may hold."""
        self._log.on = 0
        self._notes.append("this is the child of a fork: what it did itself is not recorded")
        self._sampler.forget_lock()
        torch_cpu.forget_watch()

    # ---- sources

    def _after_import(self, module: str, watch: Callable[[], object], what: str) -> None:
        def then() -> None:
            try:
                watch()
            except HoldfastError as exc:  # the recorded program goes on
                self._notes.append(f"{what} is not recorded: {exc.what}")

        hook = import_hooks.AfterImport(module, then)
        self._install(hook.start, hook.stop)

    def _place_of(self, one: pool.Pool) -> int:
        return self._place(MemoryPlace("pool", one.device, one.name))

    def _place(self, place: MemoryPlace) -> int:
        if place not in self._places:
            self._places.append(place)
        return self._places.index(place)

    def _add_existing_blocks(self) -> None:
        """Add blocks from before. Called once watching began; a block seen twice counts once."""
        for one in pool.live_pools():
            place = self._place_of(one)
            for base, length, *_ in one.core.segments():
                if length:
                    self._before.append(Event(0, Kind.RESERVE, base, length, 0, place, 0))
            for _, _, address, _, wanted, state, tag, _ in one.core.chunks():
                if state == USED:
                    self._before.append(Event(0, Kind.ALLOC, address, wanted, 0, place, tag))

    def _require_compiled(self) -> None:
        if not self._compiled:
            raise Unsupported("this needs the compiled core of the pools")

    def _watch_numpy(self) -> None:
        self._require_compiled()
        import_hooks.prepare_watch()
        place = self._place(MemoryPlace("numpy", "cpu"))
        handler = numpy_handler.logging_handler(self._log, place, self.least)
        before = numpy_handler.set_handler(handler)
        self._cleanup.callback(numpy_handler.set_handler, before)
        threads = import_hooks.InThreads(lambda: numpy_handler.set_handler(handler))
        self._install(threads.start, threads.stop)
        others = {t for t in threading.enumerate() if t.name != samples.THREAD}
        if len(others) > 1:
            count = len(others) - 1
            self._notes.append(
                f"NumPy's memory is not recorded for {count} thread{'s'[: count > 1]} "
                "that started before the recording"
            )

    def _watch_torch(self) -> None:
        self._install(lambda: tags.keep_switches(True), self._end_switches)
        self._install(self._cuda.start, self._cuda.stop)
        self._require_compiled()
        place = self._place(MemoryPlace("torch", "cpu"))
        self._cleanup.callback(torch_cpu.unwatch)
        torch_cpu.watch(self._log, place, self.least)

    def _end_switches(self) -> None:
        self._kept_switches = tags.switches()
        tags.keep_switches(False)

    def _note_python(self) -> None:
        if "python" not in self.sources or not tracemalloc.is_tracing():
            return
        own = tracemalloc.DomainFilter(inclusive=True, domain=0)
        found = tracemalloc.take_snapshot().filter_traces([own]).statistics("lineno")
        for line in found[:_TOP]:
            frame = line.traceback[0]
            self._notes.append(
                f"Python's own objects at the end: {format_bytes(line.size)} in {line.count} "
                f"blocks from {frame.filename}:{frame.lineno}"
            )

    def _check_limit(self) -> None:
        if self._log.count >= self.limit and self._log.on:
            self._log.on = 0
            pool.watch_pools(None)
            self._notes.append(
                f"recording stopped after {self._log.count:,} events: the limit is {self.limit:,}"
            )

    # ---- the document

    def _assemble(self) -> Recording:
        columns = self._log.columns()  # before the tables: those only grow
        ended_ns = self._ended_ns or time.monotonic_ns()
        made = Recording(
            title=self.title,
            started_s=self._started_s,
            duration_ns=ended_ns - self._log.started_ns,
            stacks_table=resolve(self._log.stacks()),
            places_table=list(self._places),
            tags_table=tags.names(),
            series=self._sampler.series(),
            notes=[*self._notes, *self._cuda.notes],
        )
        for event in self._before:
            made.add(event)
        for name, column in zip(COLUMNS, columns, strict=True):
            getattr(made, name).frombytes(column)
        if self._log.lost:
            made.notes.append(f"{self._log.lost:,} events are lost: there was no memory for them")
        if not self._compiled:
            sort_events(made)  # the Python log is written by several threads without one lock
        cuda = self._cuda.so_far()
        if cuda is not None:
            began = self._log.started_ns
            switches = self._kept_switches or tags.switches()
            merge(made, cuda, [(when - began, number) for when, number in switches])
        return made


def resolve(unresolved: Iterable[list[tuple[Any, int]]]) -> list[tuple[Frame, ...]]:
    """Stacks of (code, instruction) as frames, without our own and those of the command line."""
    known: dict[tuple[int, int], Frame] = {}
    resolved = []
    for stack in unresolved:
        frames: list[Frame] = []
        for code, instruction in stack:
            key = (id(code), instruction)
            if key not in known:
                line = stacks.line_of(code, instruction)
                known[key] = Frame(code.co_filename, line, code.co_qualname)
            frame = known[key]
            if frame.file == _SCRIPT:
                while frames and frames[-1].file == "<frozen runpy>":
                    frames.pop()
                break
            if frame.file != import_hooks.__file__:
                frames.append(frame)
        resolved.append(tuple(frames))
    return resolved


_SCRIPT = str(Path(__file__).with_name("script.py"))


def _after_fork() -> None:
    if _active is not None and _active.running:
        _active.stop_in_child()


register_at_fork(after_in_child=_after_fork)
