"""Who holds what: every allocation of one provider, by address and generation.

Covers: handles that are stale or foreign, the states of an allocation, counters and their history,
what nobody refers to any more.  Leaves to others: memory itself (a provider's backing).
Promise: an allocation is closed once, by one thread; no state is left behind by an error or Ctrl-C.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.base.errors import (
    DoubleFree,
    ForeignPointer,
    HoldfastError,
    InUse,
    Misuse,
    UseAfterFree,
)
from holdfast.memory.stats import Counter
from holdfast.memory.svm.model import Chunk, Placement, Sample, Where

if TYPE_CHECKING:
    from holdfast.memory.svm.affinity import Grant
    from holdfast.memory.svm.allocation import Allocation

HISTORY = 1024


class Backing(Protocol):
    """The memory behind one allocation, as its provider got it. Calls come one at a time."""

    address: int  # where the host finds it
    moves_under_views: bool  # whether it may be moved while the host looks at it

    def map(self) -> None:
        """Let the host look: before the first view."""
        ...

    def unmap(self) -> None:
        """The host looks no more: after the last view, before a device or a migration."""
        ...

    def where(self) -> Where:
        """In which domain the pages are."""
        ...

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Move the pages of a part that are in `source`; those that cannot be stay whole."""
        ...

    def moved(self, target: int) -> None:
        """All was moved: pages that are still to come belong there too."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class _Tie(weakref.ref["Allocation"]):
    """What is kept of a handle: its end puts this, by one call in C, where the ledger looks.

    A `__del__` can be broken off by Ctrl-C before it did anything; this cannot.
    """

    __slots__ = ("record",)
    record: Record


class Record:
    """One allocation: its memory, who looks at it and what is being done to it."""

    def __init__(self, backing: Backing, size: int, generation: int, placement: Placement) -> None:
        self.backing, self.size = backing, size
        self.generation, self.placement = generation, placement
        self.lock = threading.RLock()
        self.busy: str | None = None  # what is being done to it
        self.freed = False
        self.mapped = False
        self.grant: Grant | None = None  # threads that were bound for it
        self.tie: _Tie | None = None
        self._looking: list[weakref.ref[Any]] = []

    @property
    def views(self) -> int:
        """How many arrays, tensors and memoryviews look at it."""
        self._looking = [ref for ref in self._looking if ref() is not None]
        return len(self._looking)

    def looked_at_by(self, window: object) -> None:
        """One more view; it counts until it is gone."""
        self._looking.append(weakref.ref(window))

    def settle(self) -> None:
        """Take the memory from the host, if nothing looks at it any more."""
        if self.mapped and not self.views:
            self.backing.unmap()
            self.mapped = False


class Ledger:
    """Every allocation of one provider."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.counter = Counter()
        self.refused = self.migrations = self.migrated_bytes = 0
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self._live: dict[int, Record] = {}
        self._generations = itertools.count(1)
        self._gone: deque[_Tie] = deque()
        self._lock = threading.Lock()
        self._began = time.monotonic()

    # ---- in and out

    def add(
        self,
        backing: Backing,
        size: int,
        placement: Placement,
        handle: Callable[[Record], Allocation],
    ) -> Allocation:
        """Count an allocation; its handle is `handle(record)`."""
        record = Record(backing, size, next(self._generations), placement)
        with self._lock:
            made = handle(record)
            # Of two callbacks the later one is called first. Where Ctrl-C breaks the sweep off,
            # the next call here does the work.
            weakref.finalize(made, self._sweep_if_idle).atexit = False
            record.tie = _Tie(made, self._gone.append)
            record.tie.record = record
            self._live[backing.address] = record
            self.counter.add(size)
            self._sample("alloc")
        return made

    def live(self) -> list[Record]:
        """Every allocation that was not given back, oldest first."""
        with self._lock:
            return sorted(self._live.values(), key=lambda record: record.generation)

    def handles(self) -> list[Allocation]:
        """The handles of those that somebody still refers to."""
        found = (record.tie() for record in self.live() if record.tie is not None)
        return [handle for handle in found if handle is not None]

    def record(self, handle: object, *, freeing: bool = False) -> Record:
        """What `handle` stands for. Raises UseAfterFree (DoubleFree where freeing), ForeignPointer.

        The address alone would not do: another allocation may have it by now.
        """
        from holdfast.memory.svm.allocation import Allocation

        self.sweep()
        if not isinstance(handle, Allocation):
            raise ForeignPointer(
                f"{_shown(handle)} is no allocation of {self.provider!r}",
                expected="the handle that alloc() returned; a bare number does not tell which of "
                "the allocations that were at that address it means",
            )
        if handle.provider.ledger is not self:
            raise ForeignPointer(
                f"{handle!r} was not made by {self.provider!r}",
                expected=f"a handle of {self.provider!r}",
                hint=f"use the provider that made it: {handle.provider.name!r}, or handle.free()",
            )
        record = self._find(handle)
        if record is None:
            raise _given_back(repr(handle), freeing=freeing)
        return record

    def holds(self, handle: Allocation) -> bool:
        """Whether an allocation of this ledger was not given back."""
        return self._find(handle) is not None

    def _find(self, handle: Allocation) -> Record | None:
        with self._lock:
            record = self._live.get(handle.address)
        return record if record and record.generation == handle.generation else None

    def free(self, record: Record) -> None:
        """Close an allocation. Raises InUse where somebody looks at it or moves it."""
        with record.lock:
            if record.freed:
                raise _given_back("this allocation", freeing=True)
            if record.busy:
                raise InUse(
                    f"the allocation at {record.backing.address:#x} cannot be given back: "
                    f"it is being {record.busy}",
                    expected="an allocation that nothing is being done to",
                    hint="wait until that is over, or stop it",
                )
            if record.views:
                raise looked_at(record, "given back")
            record.settle()
            self._close(record)

    def _close(self, record: Record) -> None:
        """With the record's lock held. It is forgotten first: the address may come again.

        Only a provider's own error means that the memory is still there. Ctrl-C may come out when
        it is gone already, and to free it again would be to free what somebody else got since.
        """
        address = record.backing.address
        with self._lock:
            self._live.pop(address)
            record.freed = True
        try:
            record.backing.close()
        except HoldfastError:
            with self._lock:
                self._live[address] = record
                record.freed = False
            raise
        except BaseException:
            self._closed(record)
            raise
        self._closed(record)

    def _closed(self, record: Record) -> None:
        with self._lock:
            self.counter.remove(record.size)
            self._sample("free")
        if record.grant is not None:
            record.grant.give_back()

    def sweep(self) -> None:
        """Give back what nobody refers to any more.

        What its provider will not take stays counted; nobody is there to be told, so the error
        goes where Python tells of errors in destructors.
        """
        while True:
            try:
                record = self._gone.popleft().record
            except IndexError:
                return
            try:
                with record.lock:
                    if not record.freed and not record.busy:
                        record.settle()
                        self._close(record)
            except HoldfastError as exc:
                _tell_nobody(exc, record)

    def _sweep_if_idle(self) -> None:
        """For finalizers: they may come in the middle of anything, also of what holds the lock."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self.sweep()

    # ---- states

    @contextlib.contextmanager
    def doing(self, record: Record, what: str, *, alone: bool) -> Iterator[None]:
        """While the block lasts `what` is done to the allocation, and nobody frees it.

        With `alone` nobody may look at it either. Raises InUse, or UseAfterFree.
        """
        with record.lock:
            if record.freed:
                raise _given_back("this allocation", freeing=False)
            if record.busy:
                raise InUse(
                    f"the allocation at {record.backing.address:#x} cannot be {what}: "
                    f"it is being {record.busy}",
                    expected="one thing at a time",
                )
            if alone and record.views:
                raise looked_at(record, what)
            record.settle()
            record.busy = what
        try:
            yield
        finally:
            record.busy = None

    def count_migration(self, moved_bytes: int) -> None:
        """A migration is over, or was broken off."""
        with self._lock:
            self.migrations += 1
            self.migrated_bytes += moved_bytes
            self._sample("migrate")

    def count_refusal(self) -> None:
        """An allocation could not be had."""
        with self._lock:
            self.refused += 1

    def _sample(self, event: str) -> None:
        self.history.append(
            Sample(
                seconds=round(time.monotonic() - self._began, 6),
                event=event,
                current_bytes=self.counter.current_bytes,
                current_count=self.counter.current_count,
                migrated_bytes=self.migrated_bytes,
            )
        )


def looked_at(record: Record, what: str) -> InUse:
    """The error for an allocation that somebody looks at."""
    count = record.views
    who = "1 view looks" if count == 1 else f"{count} views look"
    return InUse(
        f"the allocation at {record.backing.address:#x} cannot be {what}: {who} at it",
        expected="no array, tensor or memoryview over it",
        hint="del the arrays and tensors first; the memory follows with the last of them",
    )


def _given_back(what: str, *, freeing: bool) -> Misuse:
    if freeing:
        return DoubleFree(
            f"{what} was given back before",
            expected="an allocation that was not given back yet",
            hint="free each allocation once, or use it as a context manager",
        )
    return UseAfterFree(
        f"{what} was given back and cannot be used",
        expected="an allocation that was not given back yet",
        hint="allocate again; what was in it is gone",
    )


def _tell_nobody(exc: HoldfastError, record: Record) -> None:
    told = SimpleNamespace(
        exc_type=type(exc),
        exc_value=exc,
        exc_traceback=exc.__traceback__,
        err_msg="an allocation that nobody refers to was not taken back",
        object=record,
    )
    hook: Callable[[Any], object] = sys.unraisablehook
    hook(told)


def _shown(handle: object) -> str:
    return f"{handle:#x}" if isinstance(handle, int) else repr(handle)
