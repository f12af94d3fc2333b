"""The block of the Python core: memory that is freed when the last reference goes."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from holdfast.memory.core import views


class Tie(weakref.ref["Block"]):
    """A core's weak reference to a block: when the block dies, it enters the core's queue.

    That is one call in C, which Ctrl-C cannot interrupt, as it can a `__del__`.
    """

    __slots__ = ("address",)
    address: int


class Block(views.Viewable):
    """A piece of memory, freed when the last reference goes.

    It is a buffer, a NumPy array (`array()`, `np.asarray`) and a torch tensor (`tensor()`, DLPack)
    with no copy; each of those keeps it alive.
    """

    __slots__ = ("__weakref__", "_owner", "_views", "address", "entry", "size")
    public_name = "holdfast.memory.Block"
    host = True
    pinned = False

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self._owner = owner  # owner.give(address) frees the memory
        self.address = address
        self.size = size
        self.entry: Any = None  # its row in the core's table; tells it from a later block there

    def of(self, owner: object) -> bool:
        return self._owner is owner and self.entry is not None

    @property
    def ptr(self) -> int:
        return self.address

    @property
    def freed(self) -> bool:
        owner = self._owner
        if owner is None:
            return True
        return self.entry is not None and not owner.holds(self.address, self.entry)

    @property
    def exports(self) -> int:
        return sum(ref() is not None for ref in getattr(self, "_views", ()))

    def detach(self) -> None:
        """Forget the owner: the memory was freed or moved."""
        self._owner = None
        if self.entry is not None and self.entry[4] is not None:
            self.entry[4].address = 0

    def view(self) -> memoryview:
        """The bytes. Raises BufferError for a freed block, or one the CPU cannot reach."""
        if self.freed:
            raise BufferError("this block was freed")
        if not self.host:
            raise BufferError("this block is not in host memory")
        window = views.window(self, self.address, self.size)
        open_views = [ref for ref in getattr(self, "_views", ()) if ref() is not None]
        self._views = [*open_views, weakref.ref(window)]
        return memoryview(window).cast("B")

    __cuda_array_interface__ = property(views.cuda_array_interface)

    def __repr__(self) -> str:
        return views.describe(self)


class _AtOnce:
    """Frees a block in `__del__`, and not at the core's next call."""

    __slots__ = ()
    _owner: Any
    address: int
    entry: Any

    def __del__(self) -> None:
        owner = self._owner
        if owner is None or not self.address:
            return
        if self.entry is None:
            owner.give(self.address)
        else:
            owner.give(self.address, self.entry)


@functools.cache
def block_class(host: bool, pinned: bool, at_once: bool) -> type[Block]:
    """The class for blocks of a core; the pages of `pinned` ones are locked."""
    if host and not pinned and not at_once:
        return Block
    bases = (_AtOnce, Block) if at_once else (Block,)
    return type("Block", bases, {"__slots__": (), "host": host or pinned, "pinned": pinned})


def make_block(
    owner: Any, address: int, size: int, host: bool = True, pinned: bool = False
) -> Block:
    """A block that `owner.give(address)` frees."""
    return block_class(host, pinned, at_once=True)(owner, address, size)
