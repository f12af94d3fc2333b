"""`Allocation`: the handle of a piece of shared virtual memory, with zero-copy views of it.

A view keeps the memory alive. Freed memory cannot be reached through an old handle.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import InUse
from holdfast.base.units import format_bytes
from holdfast.memory.core import views
from holdfast.memory.svm.ledger import Handle
from holdfast.memory.svm.model import Migration, Placement, Progress, Stop, Where

if TYPE_CHECKING:
    from holdfast.memory.svm.interface import Provider
    from holdfast.memory.svm.record import Record


class Allocation(views.Viewable, Handle, contextlib.AbstractContextManager["Allocation"]):
    """Memory of a provider, freed by `free()`, at the end of a `with` block, or with the last
    reference to it and to its views.

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
        """Whether it was freed."""
        return not self.provider.ledger.holds(self)

    @property
    def exports(self) -> int:
        """How many arrays, tensors and memoryviews of it are alive."""
        record = self.provider.ledger.record(self)
        with record.lock:
            return record.views

    @property
    def domains(self) -> dict[int, int]:
        """Pages by domain now."""
        return self.where().pages

    def view(self) -> memoryview:
        """The bytes. Raises UseAfterFree, or InUse while a device uses them."""
        record = self.provider.ledger.record(self)
        with record.lock:
            self.provider.ledger.record(self)  # another thread may have freed it
            if record.busy and not record.backing.moves_under_views:
                raise InUse(
                    f"the host cannot access {self!r}: it is being {record.busy}",
                    expected="memory that the device does not use",
                )
            if not record.mapped:
                record.backing.map()
                record.mapped = True
            window = views.window(self, record.backing.address, record.size)
            record.add_view(window)
        return memoryview(window).cast("B")

    def where(self) -> Where:
        """Pages by domain, and how that is known."""
        return self.provider.where(self)

    def migrate(
        self,
        from_domain: int,
        to_domain: int,
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> Migration:
        """Move its pages from one domain to another; see `Provider.migrate`."""
        return self.provider.migrate(self, from_domain, to_domain, progress=progress, stop=stop)

    def free(self) -> None:
        """Free it. Raises InUse while it has views, DoubleFree."""
        self.provider.free(self)

    def on_device(self, queue: Any = None) -> contextlib.AbstractContextManager[Any]:
        """Yields what to pass to a kernel. Raises Unsupported if the provider has no device."""
        return self.provider.on_device(self, queue)

    def __exit__(self, exc_type: object, *_: object) -> None:
        if self.freed:
            return
        try:
            self.free()
        except InUse:
            if exc_type is None:  # else the frames of that error may hold the views
                raise

    def __repr__(self) -> str:
        state = ", freed" if self.freed else ""
        made_up = ", simulated" if self.provider.simulated else ""
        return (
            f"<Allocation {self.generation} of {format_bytes(self.size)} by {self.provider.name} "
            f"at {self.address:#x}{made_up}{state}>"
        )
