"""`Allocation`: the handle of a piece of shared virtual memory.

Covers: views (NumPy, torch, buffers) with no copy, giving back, a handle that is stale.
Leaves to others: the memory (providers), who holds what (ledger).
Promise: a view keeps the memory; freed memory can never be reached through an old handle.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import InUse
from holdfast.base.units import format_bytes
from holdfast.memory import views

if TYPE_CHECKING:
    from holdfast.memory.svm.interface import Progress, Provider, Stop
    from holdfast.memory.svm.model import Migration, Placement, Where
    from holdfast.memory.svm.record import Record


class Allocation(views.Viewed, contextlib.AbstractContextManager["Allocation"]):
    """Memory of a provider, given back by `free()`, at the end of a `with` block, or when the last
    reference to it and to its views goes.

        with svm.alloc("256MB", domain=1) as memory:
            array = memory.array("float32", (8192, 8192))      # no copy
            print(memory.where().pages)
            del array                                           # a view would keep the memory
    """

    public_name = "holdfast.memory.svm.Allocation"
    host = True
    pinned = False

    def __init__(self, provider: Provider, record: Record) -> None:
        self.provider = provider
        self.address = record.backing.address
        self.size = record.size
        self.generation = record.generation
        self.placement: Placement = record.placement

    @property
    def freed(self) -> bool:
        """Whether it was given back."""
        return not self.provider.ledger.holds(self)

    @property
    def exports(self) -> int:
        """How many arrays, tensors and memoryviews look at it."""
        record = self.provider.ledger.record(self)
        with record.lock:
            return record.views

    @property
    def domains(self) -> dict[int, int]:
        """Pages by domain, as they are now."""
        return self.where().pages

    def view(self) -> memoryview:
        """The bytes. Raises UseAfterFree, and InUse where a device has them at the moment."""
        record = self.provider.ledger.record(self)
        with record.lock:
            self.provider.ledger.record(self)  # another thread may have given it back
            if record.busy and not record.backing.moves_under_views:
                raise InUse(
                    f"the host cannot look at {self!r}: it is being {record.busy}",
                    expected="memory that the device does not use",
                )
            if not record.mapped:
                record.backing.map()
                record.mapped = True
            window = views.window(self, record.backing.address, record.size)
            record.looked_at_by(window)
        return memoryview(window).cast("B")

    def where(self) -> Where:
        """In which domain each page is."""
        return self.provider.where(self)

    def migrate(
        self,
        from_domain: int,
        to_domain: int,
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Migration:
        """Move the pages in one domain to another; see `Provider.migrate`."""
        return self.provider.migrate(self, from_domain, to_domain, progress=progress, stop=stop)

    def free(self) -> None:
        """Give it back. Raises InUse where somebody looks at it, DoubleFree."""
        self.provider.free(self)

    def on_device(self, queue: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Within the block, what to pass to a kernel; only where the provider has a device."""
        return self.provider.on_device(self, queue)

    def __exit__(self, exc_type: object, *_: object) -> None:
        if self.freed:
            return
        try:
            self.free()
        except InUse:
            if exc_type is None:  # else the views are those of the error's own frames
                raise

    def __repr__(self) -> str:
        state = ", given back" if self.freed else ""
        made_up = ", simulated" if self.provider.simulated else ""
        return (
            f"<Allocation {self.generation} of {format_bytes(self.size)} by {self.provider.name} "
            f"at {self.address:#x}{made_up}{state}>"
        )
