"""`Ledger`: every allocation of one provider by generation, with counters and their history.

`Record` is one allocation; its `Backing`, the memory, is what a provider implements. An allocation
is closed once, by one thread. An error or Ctrl-C leaves no state behind.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from holdfast.base.errors import (
    DoubleFree,
    ForeignPointer,
    HoldfastError,
    InUse,
    Misuse,
    UseAfterFree,
)
from holdfast.base.threads import register_at_fork
from holdfast.memory.core.stats import Counter
from holdfast.memory.svm.affinity import Grant
from holdfast.memory.svm.model import Chunk, Placement, Sample, Where

HISTORY = 1024


class Backing(abc.ABC):
    """The memory behind one allocation, as its provider got it.

    Calls are serialized, except `where`, which may come during a `move`.
    """

    address: int  # on the host
    moves_under_views = True  # may be moved while the host has views of it
    moves_whole = False  # can only be moved as a whole

    def map(self) -> None:  # noqa: B027  most need none
        """Make it accessible to the host; called before the first view."""

    def unmap(self) -> None:  # noqa: B027
        """End host access: after the last view, before a device uses it or it migrates."""

    @abc.abstractmethod
    def where(self) -> Where:
        """Pages by domain."""

    @abc.abstractmethod
    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Move the pages of a range that are in `source`; those that cannot move stay intact."""

    def finish_move(self, target: int) -> None:  # noqa: B027
        """Called when all pages have moved: pages touched later belong to `target` too."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the memory. A second call does nothing, even if the address was reused."""


class Tie(weakref.ref[Any]):
    """Weak reference to a handle. When the handle dies, one C call queues this for the ledger.

    Ctrl-C can interrupt a `__del__` before it did anything; it cannot interrupt this.
    """

    __slots__ = ("record",)
    record: Record


class Record:
    """One allocation: its memory, its views, the operation on it."""

    def __init__(self, backing: Backing, size: int, generation: int, placement: Placement) -> None:
        self.backing, self.size = backing, size
        self.generation, self.placement = generation, placement
        self.lock = threading.RLock()
        self.operation: weakref.ref[Operation] | None = None
        self.freed = False
        self.closing = False  # a thread is closing it right now
        self.mapped = False
        self.grant: Grant | None = None  # threads bound for it
        self.tie: Tie | None = None
        self._views: list[weakref.ref[Any]] = []

    @property
    def busy(self) -> str | None:
        """The operation in progress ("migrated"), or None."""
        operation = self.operation() if self.operation is not None else None
        return operation.name if operation is not None else None

    @property
    def views(self) -> int:
        """How many arrays, tensors and memoryviews of it are alive."""
        return sum(ref() is not None for ref in self._views)

    def add_view(self, window: object) -> None:
        """Count a view as long as it lives. With the lock held."""
        self._views = [ref for ref in self._views if ref() is not None]
        self._views.append(weakref.ref(window))

    def settle(self) -> None:
        """Unmap the memory from the host if no view is left. With the lock held."""
        if self.mapped and not self.views:
            self.backing.unmap()
            self.mapped = False


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation on an allocation, held only by the caller's frame: it ends with that frame."""

    name: str  # a participle, for error texts: "migrated"


class Handle:
    """Base class of the handles in a ledger."""

    provider: Any  # its maker, with a `name` and a `ledger`
    generation: int


HandleT = TypeVar("HandleT", bound=Handle)


class Ledger(Generic[HandleT]):
    """Every allocation of one provider.

    Ctrl-C may come between any two lines. So each step of freeing can be repeated, the next call
    finds what was not finished, and current figures are counted anew.
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.refused = self.migrations = self.migrated_bytes = 0
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self._counter = Counter()
        self._live: dict[int, Record] = {}  # by generation
        self._generations = itertools.count(1)
        self._to_do: deque[object] = deque()  # ties of dead handles, records being closed
        self._lock = threading.Lock()
        self.placing = threading.Lock()  # for the provider: one thread looks for room at a time
        self._began = time.monotonic()
        _ledgers.add(self)

    # ---- in and out

    def add(
        self,
        backing: Backing,
        size: int,
        placement: Placement,
        handle: Callable[[Record], HandleT],
    ) -> HandleT:
        """Count an allocation and return its handle, `handle(record)`."""
        record = Record(backing, size, next(self._generations), placement)
        try:
            with self._lock:
                made = handle(record)
                # Of two callbacks the later one is called first. If Ctrl-C interrupts the sweep,
                # the next call into the ledger does the work.
                weakref.finalize(made, self._sweep_if_idle).atexit = False
                record.tie = Tie(made, self._to_do.append)
                record.tie.record = record
                self._live[record.generation] = record
                self._count("alloc", size)
        except BaseException:
            record.freed = True
            self._forget(record)
            raise
        return made

    def live(self) -> list[Record]:
        """The allocations that are not freed, oldest first."""
        with self._lock:
            return [record for record in self._live.values() if not record.freed]

    def handles(self) -> list[HandleT]:
        found = (record.tie() for record in self.live() if record.tie is not None)
        return [handle for handle in found if handle is not None]

    def record(self, handle: object, *, freeing: bool = False) -> Record:
        """The record of a handle. Raises UseAfterFree (DoubleFree if `freeing`), ForeignPointer.

        An address is not enough: another allocation may have it by now.
        """
        self.sweep()
        owner = owner_of(handle)
        if owner is None:
            raise ForeignPointer(
                f"{format_handle(handle)} is no allocation of {self.provider!r}",
                expected="the handle that alloc() returned; several allocations may have had an "
                "address, one after the other",
            )
        if owner.ledger is not self:
            raise ForeignPointer(
                f"{handle!r} was not made by {self.provider!r}",
                expected=f"a handle of {self.provider!r}",
                hint=f"use the provider that made it: {owner.name!r}, or handle.free()",
            )
        record = self._find(handle)
        if record is None:
            raise freed_error(repr(handle), freeing=freeing)
        return record

    def holds(self, handle: HandleT) -> bool:
        """Whether an allocation of this ledger is not freed."""
        return self._find(handle) is not None

    def _find(self, handle: Any) -> Record | None:
        with self._lock:
            record = self._live.get(handle.generation)
        if record is None or record.freed or record.tie is None:
            return None
        return record if record.tie() is handle else None  # a copy of the handle does not count

    def free(self, record: Record) -> None:
        """Close an allocation. Raises InUse while it has views or an operation is in progress."""
        with record.lock:
            if record.freed:
                raise freed_error("this allocation", freeing=True)
            if record.busy:
                raise InUse(
                    f"the allocation at {record.backing.address:#x} cannot be freed: "
                    f"it is being {record.busy}",
                    expected="an allocation with no operation in progress",
                    hint="wait until that is over, or stop it",
                )
            if record.views:
                raise viewed_error(record, "freed")
            self._close(record)

    def _close(self, record: Record) -> None:
        """With the record's lock held; may be repeated.

        Only an error of the provider means that the memory is still there. After Ctrl-C that is
        unknown, so from then on nobody can use it.
        """
        record.settle()
        self._to_do.append(record)
        try:
            record.closing = record.freed = True
            record.backing.close()
            if record.grant is not None:
                record.grant.release()
            self._forget(record)
        except HoldfastError:
            record.freed = False
            raise
        finally:
            record.closing = False
        self._remove_to_do([record])

    def _forget(self, record: Record) -> None:
        with self._lock:
            if self._live.pop(record.generation, None) is not None:
                self._count("free")

    def sweep(self) -> None:
        """Free what is no longer referenced, and what Ctrl-C left half closed.

        If a provider fails to free, the allocation stays counted. There is no caller to raise to,
        so Python reports the error as one in a destructor.
        """
        if not self._to_do:
            return
        seen = list(self._to_do)
        with self._lock:
            over = [r for r in self._live.values() if r.freed or r.tie is None or r.tie() is None]
        for record in over:
            # Busy in another thread, or in a frame that is about to go. Do not wait for it here:
            # that thread may wait for a lock of this one.
            if record.busy or record.closing:
                self._to_do.append(record)
            else:
                self._finish(record)
        self._remove_to_do(seen)

    def _finish(self, record: Record) -> None:
        try:
            with record.lock:
                if self._live.get(record.generation) is record:
                    self._close(record)
        except HoldfastError as exc:
            _RaiseInDestructor(exc)

    def _remove_to_do(self, entries: list[object]) -> None:
        for entry in entries:
            with contextlib.suppress(ValueError):  # another thread was quicker
                self._to_do.remove(entry)

    def _sweep_if_idle(self) -> None:
        """For finalizers: they may run anywhere, also in a frame that holds the lock."""
        if not self._lock.locked():
            self.sweep()

    # ---- operations

    @contextlib.contextmanager
    def operation(self, record: Record, name: str, *, alone: bool) -> Iterator[None]:
        """Mark the allocation as being `name` ("migrated") in the block; it cannot be freed then.

        With `alone` it may have no views either. Raises InUse, or UseAfterFree.
        """
        operation = Operation(name)
        try:
            with record.lock:
                self._check_idle(record, name, alone)
                record.settle()
                record.operation = weakref.ref(operation)
            yield
        finally:
            del operation

    def _check_idle(self, record: Record, name: str, alone: bool) -> None:
        if record.freed:
            raise freed_error("this allocation", freeing=False)
        if record.busy:
            raise InUse(
                f"the allocation at {record.backing.address:#x} cannot be {name}: "
                f"it is being {record.busy}",
                expected="one operation at a time",
            )
        if alone and record.views:
            raise viewed_error(record, name)

    # ---- figures

    def counter(self) -> Counter:
        """Current, peak and total bytes and allocations."""
        self.sweep()
        with self._lock:
            self._recount()
            return replace(self._counter)

    def count_migration(self, moved_bytes: int) -> None:
        with self._lock:
            self.migrations += 1
            self.migrated_bytes += moved_bytes
            self._count("migrate")

    def count_refusal(self) -> None:
        with self._lock:
            self.refused += 1

    def _recount(self) -> None:
        c = self._counter
        c.current_bytes = sum(record.size for record in self._live.values())
        c.current_count = len(self._live)
        c.peak_bytes = max(c.peak_bytes, c.current_bytes)
        c.peak_count = max(c.peak_count, c.current_count)

    def _count(self, event: str, size: int | None = None) -> None:
        """Add an event to the history; `size` if it is an allocation. With the lock held."""
        if size is not None:
            self._counter.total_bytes += size
            self._counter.total_count += 1
        self._recount()
        self.history.append(
            Sample(
                seconds=round(time.monotonic() - self._began, 6),
                event=event,
                current_bytes=self._counter.current_bytes,
                current_count=self._counter.current_count,
                migrated_bytes=self.migrated_bytes,
            )
        )

    def renew_locks(self) -> None:
        """In the child of a fork: the threads that held them do not exist here."""
        self._lock, self.placing = threading.Lock(), threading.Lock()
        for record in self._live.values():
            record.lock = threading.RLock()
            record.operation, record.closing = None, False


_ledgers: weakref.WeakSet[Ledger[Any]] = weakref.WeakSet()


def _renew_locks() -> None:
    for ledger in list(_ledgers):
        ledger.renew_locks()


register_at_fork(after_in_child=_renew_locks)


def owner_of(handle: object) -> Any:
    """The provider that made a handle; None for any other object."""
    return getattr(handle, "provider", None) if isinstance(handle, Handle) else None


class _RaiseInDestructor:
    """Raises an error in its destructor, which hands it to `sys.unraisablehook`."""

    def __init__(self, exc: HoldfastError) -> None:
        self.exc = exc

    def __del__(self) -> None:
        raise self.exc


def format_handle(handle: object) -> str:
    """Describe what was passed as a handle, without the repr of a forged one: that may fail."""
    if not isinstance(handle, int | float | str | None):
        return f"an object of type {type(handle).__name__}"
    return f"{handle:#x}" if isinstance(handle, int) else repr(handle)


def viewed_error(record: Record, what: str) -> InUse:
    count = record.views
    views = "1 view uses" if count == 1 else f"{count} views use"
    return InUse(
        f"the allocation at {record.backing.address:#x} cannot be {what}: {views} it",
        expected="no array, tensor or memoryview over it",
        hint="del the arrays and tensors first; the last one frees the memory",
    )


def freed_error(what: str, *, freeing: bool) -> Misuse:
    """The error for a freed allocation that is freed (`freeing`) or used again."""
    if freeing:
        return DoubleFree(
            f"{what} was freed before",
            expected="an allocation that is not freed yet",
            hint="free each allocation once, or use it as a context manager",
        )
    return UseAfterFree(
        f"{what} was freed and cannot be used",
        expected="an allocation that is not freed yet",
        hint="allocate again; what was in it is gone",
    )
