"""`Svm`: shared virtual memory as a resource, for pools, limits and statistics.

    pool = MemoryPool(resource=Svm(svm.provider("numa"), domain=1))
    pool = MemoryPool(resource=Limit(Svm(svm.provider("opencl")), "4GB"))

Works for providers whose memory the host may access while a device uses it. A provider asks the
system for every block; a pool on top reuses them.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import Unsupported
from holdfast.memory.resources.resource import TrackedResource, check_size
from holdfast.memory.svm import choice
from holdfast.memory.svm.interface import Allocation, Provider


class Svm(TrackedResource[Allocation]):
    """Memory of a provider by address; `placement` are further arguments of `Provider.alloc`."""

    device = "cpu"

    def __init__(self, provider: Provider | str, **placement: Any) -> None:
        """Raises Unsupported for memory that the host may not access at any time."""
        super().__init__()
        if not isinstance(provider, Provider):
            provider = choice.provider(provider)
        self.provider = provider
        self._placement = placement
        with provider.alloc(1, **placement) as tried:
            if not provider.ledger.record(tried).backing.moves_under_views:
                raise Unsupported(
                    f"memory of {provider!r} cannot be handed out by address: "
                    "the host must not access it while a device uses it or it is moved",
                    expected="memory of numa, simulated, or fine-grained OpenCL",
                    hint="Provider.alloc, whose handles track the views",
                )

    def __repr__(self) -> str:
        return f"Svm({self.provider.name!r})"

    def allocate(self, size: int) -> int:
        handle = self.provider.alloc(max(1, check_size(size)), **self._placement)
        self._blocks.add(handle.address, handle)
        return handle.address

    def _release(self, address: int, known: Allocation) -> None:
        known.free()

    def handles(self) -> list[Allocation]:
        """The allocations behind the blocks, for migrating them."""
        return self._blocks.all()
