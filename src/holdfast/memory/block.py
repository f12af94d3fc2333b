"""A block of memory that is given back when nobody refers to it: the twin of `native/`'s."""

from __future__ import annotations

import weakref
from typing import Any

from holdfast.memory import views


class Tie(weakref.ref["Block"]):
    """What a core keeps of a block: its end puts this, by one call in C, where the core looks.

    A `__del__` can be broken off by Ctrl-C before it did anything; this cannot.
    """

    __slots__ = ("address",)
    address: int


class Block(views.Viewed):
    """A piece of memory: an address with a size, given back when the last reference goes.

    It is a buffer, a NumPy array (`array()`, `np.asarray`) and a torch tensor (`tensor()`, DLPack)
    with no copy; each of those keeps it alive.
    """

    __slots__ = ("__weakref__", "_looking", "_owner", "address", "entry", "size")
    public_name = "holdfast.memory.Block"
    host = True
    pinned = False

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self._owner = owner  # its give(address) takes the memory back
        self.address = address
        self.size = size
        self.entry: Any = None  # in the core's table; another block there has another

    def of(self, owner: object) -> bool:
        """Whether `owner` takes it back."""
        return self._owner is owner and self.entry is not None

    @property
    def ptr(self) -> int:
        """The address."""
        return self.address

    @property
    def freed(self) -> bool:
        """Whether it was given back."""
        owner = self._owner
        if owner is None:
            return True
        return self.entry is not None and not owner.holds(self.address, self.entry)

    @property
    def exports(self) -> int:
        """How many views look at it."""
        return sum(ref() is not None for ref in getattr(self, "_looking", ()))

    def detach(self) -> None:
        """Forget who takes the memory back: it was given back, or moved."""
        self._owner = None
        if self.entry is not None and self.entry[4] is not None:
            self.entry[4].address = 0

    def view(self) -> memoryview:
        """The bytes."""
        if self.freed:
            raise BufferError("this block was given back to its pool")
        if not self.host:
            raise BufferError("this block is not in the memory of the host")
        bytes_of = views.window(self, self.address, self.size)
        looking = [ref for ref in getattr(self, "_looking", ()) if ref() is not None]
        self._looking = [*looking, weakref.ref(bytes_of)]
        return memoryview(bytes_of).cast("B")

    __cuda_array_interface__ = property(views.cuda_array_interface)

    def __repr__(self) -> str:
        return views.describe(self)


class PinnedBlock(Block):
    """One whose pages the system keeps in memory."""

    __slots__ = ()
    pinned = True


class DeviceBlock(Block):
    """One that the CPU cannot reach."""

    __slots__ = ()
    host = False


class _AtOnce:
    """One that is given back the moment it goes."""

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


class _BlockAtOnce(_AtOnce, Block):
    __slots__ = ()


class _PinnedAtOnce(_AtOnce, PinnedBlock):
    __slots__ = ()


class _DeviceAtOnce(_AtOnce, DeviceBlock):
    __slots__ = ()


def kind_of(host: bool, pinned: bool, at_once: bool) -> type[Block]:
    """The class for blocks of a core."""
    if pinned:
        return _PinnedAtOnce if at_once else PinnedBlock
    if host:
        return _BlockAtOnce if at_once else Block
    return _DeviceAtOnce if at_once else DeviceBlock


def make_block(
    owner: Any, address: int, size: int, host: bool = True, pinned: bool = False
) -> Block:
    """A block that `owner.give(address)` takes back."""
    return kind_of(host, pinned, at_once=True)(owner, address, size)
