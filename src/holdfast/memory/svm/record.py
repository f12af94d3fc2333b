"""One allocation as its provider sees it: its memory, its views and the operation on it.

`Backing` is what a provider implements; the errors for memory in use or freed are here too.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.base.errors import DoubleFree, InUse, Misuse, UseAfterFree
from holdfast.memory.svm.model import Chunk, Placement, Where

if TYPE_CHECKING:
    from holdfast.memory.svm.affinity import Grant


class Backing(Protocol):
    """The memory behind one allocation, as its provider got it.

    Calls are serialized, except `where`, which may come during a `move`.
    """

    address: int  # on the host
    moves_under_views: bool  # may be moved while the host has views of it
    moves_whole: bool  # can only be moved as a whole

    def map(self) -> None:
        """Make it accessible to the host; called before the first view."""
        ...

    def unmap(self) -> None:
        """End host access: after the last view, before a device uses it or it migrates."""
        ...

    def where(self) -> Where:
        """Pages by domain."""
        ...

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Move the pages of a range that are in `source`; those that cannot move stay intact."""
        ...

    def finish_move(self, target: int) -> None:
        """Called when all pages have moved: pages touched later belong to `target` too."""
        ...

    def close(self) -> None:
        """Free the memory. A second call does nothing, even if the address was reused."""
        ...


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


def viewed_error(record: Record, what: str) -> InUse:
    """The error for an allocation that has views."""
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
