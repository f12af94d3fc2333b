"""Who holds what: every allocation of one provider, by its generation.

Covers: handles that are stale or foreign, the states of an allocation, counters and their history,
what nobody refers to any more.  Leaves to others: memory itself (a provider's backing).
Promise: an allocation is closed once, by one thread; no state is left behind by an error or Ctrl-C.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ForeignPointer, HoldfastError, InUse
from holdfast.memory.stats import Counter
from holdfast.memory.svm.model import Placement, Sample
from holdfast.memory.svm.record import Backing, Doing, Record, Tie, given_back, looked_at

if TYPE_CHECKING:
    from holdfast.memory.svm.allocation import Allocation
    from holdfast.memory.svm.interface import Provider

HISTORY = 1024


class Ledger:
    """Every allocation of one provider.

    Ctrl-C may come between any two lines. So each step of giving back can be done a second time,
    and what was not finished is found by the next call; figures of the moment are counted anew.
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.refused = self.migrations = self.migrated_bytes = 0
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self._counter = Counter()
        self._live: dict[int, Record] = {}  # by generation
        self._generations = itertools.count(1)
        self._to_do: deque[object] = deque()  # handles that went, records that are being closed
        self._lock = threading.Lock()
        self.placing = threading.Lock()  # for the provider: one looks for room at a time
        self._began = time.monotonic()
        _ledgers.add(self)

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
        try:
            with self._lock:
                made = handle(record)
                # Of two callbacks the later one is called first. Where Ctrl-C breaks the sweep
                # off, the next call here does the work.
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
        """Every allocation that was not given back, oldest first."""
        with self._lock:
            return [record for record in self._live.values() if not record.freed]

    def handles(self) -> list[Allocation]:
        """The handles of those that somebody still refers to."""
        found = (record.tie() for record in self.live() if record.tie is not None)
        return [handle for handle in found if handle is not None]

    def record(self, handle: object, *, freeing: bool = False) -> Record:
        """What `handle` stands for. Raises UseAfterFree (DoubleFree where freeing), ForeignPointer.

        The address alone would not do: another allocation may have it by now.
        """
        self.sweep()
        owner = owner_of(handle)
        if owner is None:
            raise ForeignPointer(
                f"{shown(handle)} is no allocation of {self.provider!r}",
                expected="the handle that alloc() returned; a bare number does not tell which of "
                "the allocations that were at that address it means",
            )
        if owner.ledger is not self:
            raise ForeignPointer(
                f"{handle!r} was not made by {self.provider!r}",
                expected=f"a handle of {self.provider!r}",
                hint=f"use the provider that made it: {owner.name!r}, or handle.free()",
            )
        record = self._find(handle)
        if record is None:
            raise given_back(repr(handle), freeing=freeing)
        return record

    def holds(self, handle: Allocation) -> bool:
        """Whether an allocation of this ledger was not given back."""
        return self._find(handle) is not None

    def _find(self, handle: Any) -> Record | None:
        with self._lock:
            record = self._live.get(handle.generation)
        if record is None or record.freed or record.tie is None:
            return None
        return record if record.tie() is handle else None  # and no copy of it

    def free(self, record: Record) -> None:
        """Close an allocation. Raises InUse where somebody looks at it or moves it."""
        with record.lock:
            if record.freed:
                raise given_back("this allocation", freeing=True)
            if record.busy:
                raise InUse(
                    f"the allocation at {record.backing.address:#x} cannot be given back: "
                    f"it is being {record.busy}",
                    expected="an allocation that nothing is being done to",
                    hint="wait until that is over, or stop it",
                )
            if record.views:
                raise looked_at(record, "given back")
            self._close(record)

    def _close(self, record: Record) -> None:
        """With the record's lock held; may be done a second time.

        Only a provider's own error means that the memory is still there. After Ctrl-C nobody knows,
        and from then on nobody can use it.
        """
        record.settle()
        self._to_do.append(record)
        try:
            record.closing = record.freed = True
            record.backing.close()
            if record.grant is not None:
                record.grant.give_back()
            self._forget(record)
        except HoldfastError:
            record.freed = False
            raise
        finally:
            record.closing = False
        self._done([record])

    def _forget(self, record: Record) -> None:
        with self._lock:
            if self._live.pop(record.generation, None) is not None:
                self._count("free")

    def sweep(self) -> None:
        """Give back what nobody refers to any more, and what Ctrl-C left in the middle.

        What its provider will not take stays counted; nobody is there to be told, so the error
        goes where Python tells of errors in destructors.
        """
        if not self._to_do:
            return
        seen = list(self._to_do)
        with self._lock:
            over = [r for r in self._live.values() if r.freed or r.tie is None or r.tie() is None]
        for record in over:
            # By something that was left in the middle and goes too, or by another thread. That one
            # may wait for what this thread holds, so nobody waits for it here.
            if record.busy or record.closing:
                self._to_do.append(record)
            else:
                self._finish(record)
        self._done(seen)

    def _finish(self, record: Record) -> None:
        try:
            with record.lock:
                if self._live.get(record.generation) is record:
                    self._close(record)
        except HoldfastError as exc:
            _Told(exc)

    def _done(self, things: list[object]) -> None:
        for thing in things:
            with contextlib.suppress(ValueError):  # another thread was quicker
                self._to_do.remove(thing)

    def _sweep_if_idle(self) -> None:
        """For finalizers: they may come in the middle of anything, also of what holds the lock."""
        if not self._lock.locked():
            self.sweep()

    # ---- states

    @contextlib.contextmanager
    def doing(self, record: Record, what: str, *, alone: bool) -> Iterator[None]:
        """While the block lasts `what` is done to the allocation, and nobody frees it.

        With `alone` nobody may look at it either. Raises InUse, or UseAfterFree.
        """
        doing = Doing(what)
        try:
            with record.lock:
                self._check_idle(record, what, alone)
                record.settle()
                record.doing = weakref.ref(doing)
            yield
        finally:
            del doing

    def _check_idle(self, record: Record, what: str, alone: bool) -> None:
        if record.freed:
            raise given_back("this allocation", freeing=False)
        if record.busy:
            raise InUse(
                f"the allocation at {record.backing.address:#x} cannot be {what}: "
                f"it is being {record.busy}",
                expected="one thing at a time",
            )
        if alone and record.views:
            raise looked_at(record, what)

    # ---- figures

    def counter(self) -> Counter:
        """Current, peak and total, of bytes and allocations."""
        self.sweep()
        with self._lock:
            self._recount()
            return replace(self._counter)

    def count_migration(self, moved_bytes: int) -> None:
        """A migration is over, or was broken off."""
        with self._lock:
            self.migrations += 1
            self.migrated_bytes += moved_bytes
            self._count("migrate")

    def count_refusal(self) -> None:
        """An allocation could not be had."""
        with self._lock:
            self.refused += 1

    def _recount(self) -> None:
        c = self._counter
        c.current_bytes = sum(record.size for record in self._live.values())
        c.current_count = len(self._live)
        c.peak_bytes = max(c.peak_bytes, c.current_bytes)
        c.peak_count = max(c.peak_count, c.current_count)

    def _count(self, event: str, size: int | None = None) -> None:
        """With the lock held: one more event, an allocation of `size` bytes where that is given."""
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
        """In the child of a fork: whoever held them is not here."""
        self._lock, self.placing = threading.Lock(), threading.Lock()
        for record in self._live.values():
            record.lock = threading.RLock()
            record.doing, record.closing = None, False


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _renew_locks() -> None:
    for ledger in list(_ledgers):
        ledger.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def owner_of(handle: object) -> Provider | None:
    """The provider that made a handle; None for what is no handle."""
    from holdfast.memory.svm.allocation import Allocation

    return getattr(handle, "provider", None) if isinstance(handle, Allocation) else None


class _Told:
    """Python tells of an error in a destructor where it tells of all of them."""

    def __init__(self, exc: HoldfastError) -> None:
        self.exc = exc

    def __del__(self) -> None:
        raise self.exc


def shown(handle: object) -> str:
    """What somebody took for a handle; a forged one may not even be able to tell what it is."""
    if not isinstance(handle, int | float | str | None):
        return f"an object of type {type(handle).__name__}"
    return f"{handle:#x}" if isinstance(handle, int) else repr(handle)
