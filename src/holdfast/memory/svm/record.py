"""One allocation as its provider sees it: its memory, who looks at it, what is being done to it.

Covers: what a provider has to supply (`Backing`), the errors for memory that is in use or gone.
Leaves to others: all allocations together (ledger).
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

    Calls come one at a time, but for `where`, which may come in the middle of `move`.
    """

    address: int  # where the host finds it
    moves_under_views: bool  # whether it may be moved while the host looks at it
    moves_whole: bool  # whether it can only be moved as a whole

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
        """Give the memory back. A second time does nothing, whoever has the address by then."""
        ...


class Tie(weakref.ref[Any]):
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
        self.doing: weakref.ref[Doing] | None = None
        self.freed = False
        self.closing = False  # by a thread that is at it
        self.mapped = False
        self.grant: Grant | None = None  # threads that were bound for it
        self.tie: Tie | None = None
        self._looking: list[weakref.ref[Any]] = []

    @property
    def busy(self) -> str | None:
        """What is being done to it."""
        doing = self.doing() if self.doing is not None else None
        return doing.what if doing is not None else None

    @property
    def views(self) -> int:
        """How many arrays, tensors and memoryviews look at it."""
        return sum(ref() is not None for ref in self._looking)

    def looked_at_by(self, window: object) -> None:
        """One more view; it counts until it is gone. With the lock held."""
        self._looking = [ref for ref in self._looking if ref() is not None]
        self._looking.append(weakref.ref(window))

    def settle(self) -> None:
        """Take the memory from the host, if nothing looks at it any more. With the lock held."""
        if self.mapped and not self.views:
            self.backing.unmap()
            self.mapped = False


@dataclass(frozen=True, eq=False)
class Doing:
    """That somebody does something to an allocation. Gone with who does it, however that ends."""

    what: str


def looked_at(record: Record, what: str) -> InUse:
    """The error for an allocation that somebody looks at."""
    count = record.views
    who = "1 view looks" if count == 1 else f"{count} views look"
    return InUse(
        f"the allocation at {record.backing.address:#x} cannot be {what}: {who} at it",
        expected="no array, tensor or memoryview over it",
        hint="del the arrays and tensors first; the memory follows with the last of them",
    )


def given_back(what: str, *, freeing: bool) -> Misuse:
    """The error for an allocation that was given back, and is freed or used again."""
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
