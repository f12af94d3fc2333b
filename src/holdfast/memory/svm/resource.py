"""Shared virtual memory as a resource: what pools, limits and statistics are put on.

    pool = MemoryPool(resource=Svm(svm.provider("numa"), domain=1))
    pool = MemoryPool(resource=Limit(Svm(svm.provider("opencl")), "4GB"))

Covers: any provider whose memory the host may look at while a device uses it.
Leaves to others: using memory again (pool): a provider asks the system every time.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import Unsupported
from holdfast.memory.resource import Blocks, checked
from holdfast.memory.svm import choice
from holdfast.memory.svm.allocation import Allocation
from holdfast.memory.svm.interface import Provider


class Svm:
    """Memory of a provider by address. `placement` is what `Provider.alloc` takes beside a size."""

    device = "cpu"
    pinned = False

    def __init__(self, provider: Provider | str, **placement: Any) -> None:
        """Raises Unsupported for memory that the host may not look at whenever it likes."""
        if not isinstance(provider, Provider):
            provider = choice.provider(provider)
        self.provider = provider
        self._placement = placement
        self._blocks: Blocks[Allocation] = Blocks(self)
        with provider.alloc(1, **placement) as tried:
            if not provider.ledger.record(tried).backing.moves_under_views:
                raise Unsupported(
                    f"memory of {provider!r} cannot be handed out by address: "
                    "the host has to leave it alone while it is used or moved elsewhere",
                    expected="memory of numa, simulated, or fine-grained OpenCL",
                    hint="Provider.alloc, whose handles know who looks at it",
                )

    def __repr__(self) -> str:
        return f"Svm({self.provider.name!r})"

    def allocate(self, size: int) -> int:
        """The address of `size` bytes."""
        handle = self.provider.alloc(max(1, checked(size)), **self._placement)
        self._blocks.add(handle.address, handle)
        return handle.address

    def free(self, address: int) -> None:
        """Give a block back."""
        self._blocks.remove(address, lambda _, handle: handle.free())

    def owns(self, address: int) -> bool:
        """Whether a block in use begins at `address`."""
        return address in self._blocks

    def handles(self) -> list[Allocation]:
        """The allocations behind it, for migrating them."""
        return self._blocks.all()
