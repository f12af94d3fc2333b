"""Where memory comes from: things that allocate, free, and know what is theirs.

Covers: the protocol, and memory of the host: plain, locked in place, of one NUMA node, made up.
Leaves to others: memory of a GPU (cuda), what wraps a resource (adaptors), reuse (pool).
Promise: an address that is not the resource's own is refused by name and nothing is touched.

A resource hands out whole pages and asks the system every time. That is slow; a pool goes on top.
"""

from __future__ import annotations

import mmap
import operator
import threading
from collections.abc import Callable
from typing import Generic, Protocol, SupportsInt, TypeVar, runtime_checkable

from holdfast.base.errors import BadInput, ForeignPointer, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.memory import system
from holdfast.topology import numa

Known = TypeVar("Known")


@runtime_checkable
class Resource(Protocol):
    """What allocates."""

    @property
    def device(self) -> str:
        """Where its memory lies: "cpu", "cuda:0"."""
        ...

    def allocate(self, size: int) -> int:
        """The address of `size` bytes. Raises OutOfMemory."""
        ...

    def free(self, address: int) -> None:
        """Take back what `allocate` returned. Raises ForeignPointer or DoubleFree."""
        ...

    def owns(self, address: int) -> bool:
        """Whether `address` is the start of a block in use, or lies in memory it manages."""
        ...


@runtime_checkable
class Growable(Resource, Protocol):
    """A resource whose ranges can grow in place: a pool on it needs no second segment."""

    @property
    def kind(self) -> int:
        """How a range is made usable: one of `arenas.NUMBERS_ONLY` and `arenas.SYSTEM`."""
        ...

    def reserve(self, length: int) -> int:
        """The address of a range that costs nothing yet."""
        ...

    def unreserve(self, address: int, length: int) -> None:
        """Give the range back, with all that is in it."""
        ...


class Blocks(Generic[Known]):
    """What a resource knows of each of its blocks in use, by address."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._known: dict[int, Known] = {}
        self._lock = threading.RLock()

    def __contains__(self, address: object) -> bool:
        return isinstance(address, SupportsInt) and int(address) in self._known

    def add(self, address: int, known: Known) -> None:
        """A block that was handed out."""
        with self._lock:
            self._known[address] = known

    def known(self, address: int) -> Known:
        """What is known of a block in use."""
        return self._known[address]

    def all(self) -> list[Known]:
        """What is known of every block in use."""
        with self._lock:
            return list(self._known.values())

    def remove(self, address: int, free: Callable[[int, Known], object]) -> Known:
        """Forget a block that `free` takes back, unless it fails. Raises ForeignPointer.

        Forgotten first: once a block is free, another thread may get the same address.
        """
        with self._lock:
            if address not in self:
                raise foreign(self._owner, address)
            address = int(address)
            known = self._known.pop(address)
        try:
            free(address, known)
        except BaseException:
            self.add(address, known)
            raise
        return known


class Host:
    """Private pages of the system; with `huge`, pages of 2 MB where the kernel has them."""

    kind = 1  # arenas.SYSTEM
    device = "cpu"
    pinned = False

    def __init__(self, *, huge: bool = False) -> None:
        self.huge = huge
        self._blocks: Blocks[int] = Blocks(self)  # their lengths

    def __repr__(self) -> str:
        return f"Host({'huge=True' if self.huge else ''})"

    def allocate(self, size: int) -> int:
        """Whole pages for `size` bytes, all zero."""
        length = -(-checked(size) // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE
        address = self.reserve(length)
        if not system.make_usable(address, length):
            self.unreserve(address, length)
            raise OutOfMemory(
                f"the system has no {format_bytes(size)} of memory",
                expected="memory, and no limit on it (ulimit -v, vm.overcommit_memory)",
            )
        self._blocks.add(address, length)
        return address

    def free(self, address: int) -> None:
        """Give the pages of a block back."""
        self._blocks.remove(address, self.unreserve)

    def owns(self, address: int) -> bool:
        """Whether a block in use begins at `address`."""
        return address in self._blocks

    def reserve(self, length: int) -> int:
        """A range that costs no memory until it is made usable and touched."""
        address = system.reserve(length)
        if self.huge:
            system.use_huge_pages(address, length)
        return address

    def unreserve(self, address: int, length: int) -> None:
        """Give a range back."""
        system.release(address, length)


class Numa(Host):
    """Pages of one NUMA node. Raises Unsupported where there is no such node."""

    def __init__(self, node: int, *, huge: bool = False) -> None:
        super().__init__(huge=huge)
        self.node = node
        system.release(self.reserve(mmap.PAGESIZE), mmap.PAGESIZE)  # is there such a node?

    def __repr__(self) -> str:
        return f"Numa({self.node})"

    def reserve(self, length: int) -> int:
        """A range whose pages will come from the node."""
        address = super().reserve(length)
        try:
            numa.bind(address, length, [self.node])
        except BaseException:
            system.release(address, length)
            raise
        return address


class Pinned:
    """Pages that stay in memory, so that a device can read them at the speed of the link."""

    device = "cpu"
    pinned = True

    def __init__(self) -> None:
        self._host = Host()
        self._blocks: Blocks[int] = Blocks(self)  # their lengths

    def __repr__(self) -> str:
        return "Pinned()"

    def allocate(self, size: int) -> int:
        """Pages for `size` bytes, locked. Raises OutOfMemory where they cannot be."""
        length = -(-checked(size) // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE
        address = self._host.allocate(length)
        if not system.lock(address, length):
            self._host.free(address)
            raise OutOfMemory(
                f"cannot lock {format_bytes(size)} in memory",
                expected="a limit on locked memory that allows it (ulimit -l)",
                hint="ulimit -l unlimited, or memory that is not pinned",
            )
        system.register_with_cuda(address, length)
        self._blocks.add(address, length)
        return address

    def free(self, address: int) -> None:
        """Unlock the pages and give them back."""
        self._blocks.remove(address, self._unlock)

    def _unlock(self, address: int, _length: int) -> None:
        system.unregister_from_cuda(address)
        self._host.free(address)  # munmap unlocks

    def owns(self, address: int) -> bool:
        """Whether a block in use begins at `address`."""
        return address in self._blocks


class Virtual:
    """Addresses that lead nowhere: for trying an allocator on a trace of any size."""

    kind = 0  # arenas.NUMBERS_ONLY
    device = "nowhere"
    pinned = False

    def __init__(self) -> None:
        self._next = 1 << 32
        self._blocks: Blocks[int] = Blocks(self)

    def __repr__(self) -> str:
        return "Virtual()"

    def allocate(self, size: int) -> int:
        """A range of numbers."""
        address = self.reserve(checked(size))
        self._blocks.add(address, size)
        return address

    def free(self, address: int) -> None:
        """Forget a range."""
        self._blocks.remove(address, self.unreserve)

    def owns(self, address: int) -> bool:
        """Whether a range begins there."""
        return address in self._blocks

    def reserve(self, length: int) -> int:
        """A range of numbers that no other range overlaps."""
        address = self._next
        self._next += -(-max(length, 1) // (2 << 20)) * (2 << 20)
        return address

    def unreserve(self, address: int, length: int) -> None:
        """Nothing to do."""


def checked(size: int) -> int:
    """`size`, where it is a size."""
    try:
        size = operator.index(size)
    except TypeError:
        raise BadInput(f"cannot allocate {size!r}", expected="a number of bytes") from None
    if size < 0:
        raise BadInput(f"cannot allocate {size} bytes", expected="a size from 0 up")
    return size


def foreign(resource: object, address: object) -> ForeignPointer:
    """The error for an address that is not the resource's."""
    shown = f"{int(address):#x}" if isinstance(address, SupportsInt) else repr(address)
    return ForeignPointer(
        f"{resource!r} did not hand out {shown}, or took it back before",
        expected="an address that allocate() returned and that was not freed since",
    )
