"""The `Resource` protocol and the resources of host memory.

A resource gets whole pages and asks the system every time, which is slow; put a pool on top. An
address that is not the resource's own raises ForeignPointer and changes nothing.
"""

from __future__ import annotations

import mmap
import operator
import threading
from collections.abc import Callable
from typing import Generic, Protocol, SupportsInt, TypeVar, runtime_checkable

from holdfast.base.errors import BadInput, ForeignPointer, OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.memory.core import system_pages
from holdfast.topology import numa

Known = TypeVar("Known")


@runtime_checkable
class Resource(Protocol):
    """Allocates and frees memory by address."""

    @property
    def device(self) -> str:
        """The device of its memory: "cpu", "cuda:0"."""
        ...

    def allocate(self, size: int) -> int:
        """The address of `size` bytes. Raises OutOfMemory."""
        ...

    def free(self, address: int) -> None:
        """Free what `allocate` returned. Raises ForeignPointer or DoubleFree."""
        ...

    def owns(self, address: int) -> bool:
        """Whether `address` is the start of a block in use, or lies in memory it manages."""
        ...


@runtime_checkable
class Growable(Resource, Protocol):
    """A resource whose ranges grow in place, so that a pool needs one segment per arena."""

    @property
    def kind(self) -> int:
        """How a range becomes usable: `arenas.ADDRESSES_ONLY` or `arenas.SYSTEM`."""
        ...

    def reserve(self, length: int) -> int:
        """The address of a range that costs nothing yet."""
        ...

    def unreserve(self, address: int, length: int) -> None:
        """Release the range and all that is in it."""
        ...


class Blocks(Generic[Known]):
    """A resource's blocks in use: address -> what it knows of the block."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._known: dict[int, Known] = {}
        self._lock = threading.RLock()

    def __contains__(self, address: object) -> bool:
        return isinstance(address, SupportsInt) and int(address) in self._known

    def add(self, address: int, known: Known) -> None:
        with self._lock:
            self._known[address] = known

    def known(self, address: int) -> Known:
        return self._known[address]

    def all(self) -> list[Known]:
        with self._lock:
            return list(self._known.values())

    def remove(self, address: int, free: Callable[[int, Known], object]) -> Known:
        """Remove a block and call `free`; if that fails, add it again. Raises ForeignPointer.

        Removed first: once a block is free, another thread may get the same address.
        """
        with self._lock:
            if address not in self:
                raise foreign_error(self._owner, address)
            address = int(address)
            known = self._known.pop(address)
        try:
            free(address, known)
        except BaseException:
            self.add(address, known)
            raise
        return known


class TrackedResource(Generic[Known]):
    """Keeps its blocks in use (Known: mostly their length); `_release` of a subclass frees one."""

    pinned = False

    def __init__(self) -> None:
        self._blocks: Blocks[Known] = Blocks(self)

    def free(self, address: int) -> None:
        """Free a block. Raises ForeignPointer."""
        self._blocks.remove(address, self._release)

    def owns(self, address: int) -> bool:
        """Whether a block in use begins at `address`."""
        return address in self._blocks

    def _release(self, address: int, known: Known) -> None:
        raise NotImplementedError


class Host(TrackedResource[int]):
    """Private pages of the system; with `huge`, 2 MB pages if the kernel has them."""

    kind = 1  # arenas.SYSTEM
    device = "cpu"

    def __init__(self, *, huge: bool = False) -> None:
        super().__init__()
        self.huge = huge

    def __repr__(self) -> str:
        return f"Host({'huge=True' if self.huge else ''})"

    def allocate(self, size: int) -> int:
        """Whole pages for `size` bytes, zero-filled."""
        length = _whole_pages(size)
        address = self.reserve(length)
        if not system_pages.make_usable(address, length):
            self.unreserve(address, length)
            raise OutOfMemory(
                f"the system has no {format_bytes(size)} of memory",
                expected="memory, and no limit on it (ulimit -v, vm.overcommit_memory)",
            )
        self._blocks.add(address, length)
        return address

    def _release(self, address: int, known: int) -> None:
        self.unreserve(address, known)

    def reserve(self, length: int) -> int:
        """A range that costs no memory until it is made usable and touched."""
        address = system_pages.reserve(length)
        if self.huge:
            system_pages.use_huge_pages(address, length)
        return address

    def unreserve(self, address: int, length: int) -> None:
        system_pages.release(address, length)


class Numa(Host):
    """Pages of one NUMA node. Raises Unsupported if there is no such node."""

    def __init__(self, node: int, *, huge: bool = False) -> None:
        super().__init__(huge=huge)
        self.node = node
        system_pages.release(self.reserve(mmap.PAGESIZE), mmap.PAGESIZE)  # is there such a node?

    def __repr__(self) -> str:
        return f"Numa({self.node})"

    def reserve(self, length: int) -> int:
        """A range whose pages will come from the node."""
        address = super().reserve(length)
        try:
            numa.bind(address, length, [self.node])
        except BaseException:
            system_pages.release(address, length)
            raise
        return address


class Pinned(TrackedResource[int]):
    """Pages locked in memory, so that a device can read them at full speed."""

    device = "cpu"
    pinned = True

    def __init__(self) -> None:
        super().__init__()
        self._host = Host()

    def __repr__(self) -> str:
        return "Pinned()"

    def allocate(self, size: int) -> int:
        """Locked pages for `size` bytes. Raises OutOfMemory if they cannot be locked."""
        length = _whole_pages(size)
        address = self._host.allocate(length)
        if not system_pages.lock(address, length):
            self._host.free(address)
            raise OutOfMemory(
                f"cannot lock {format_bytes(size)} in memory",
                expected="a limit on locked memory that allows it (ulimit -l)",
                hint="ulimit -l unlimited, or memory that is not pinned",
            )
        system_pages.register_with_cuda(address, length)
        self._blocks.add(address, length)
        return address

    def _release(self, address: int, known: int) -> None:
        system_pages.unregister_from_cuda(address)
        self._host.free(address)  # munmap unlocks


class Virtual(TrackedResource[int]):
    """Addresses without memory, to run an allocator on a trace of any size."""

    kind = 0  # arenas.ADDRESSES_ONLY
    device = "nowhere"

    def __init__(self) -> None:
        super().__init__()
        self._next = 1 << 32

    def __repr__(self) -> str:
        return "Virtual()"

    def allocate(self, size: int) -> int:
        """A range of addresses."""
        address = self.reserve(check_size(size))
        self._blocks.add(address, size)
        return address

    def _release(self, address: int, known: int) -> None:
        """Nothing to do."""

    def reserve(self, length: int) -> int:
        """A range of addresses that overlaps no other."""
        address = self._next
        self._next += -(-max(length, 1) // (2 << 20)) * (2 << 20)
        return address

    def unreserve(self, address: int, length: int) -> None:
        """Nothing to do."""


def _whole_pages(size: int) -> int:
    return -(-check_size(size) // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE


def check_size(size: int) -> int:
    """Return `size` as an int. Raises BadInput if it is not a size."""
    try:
        size = operator.index(size)
    except TypeError:
        raise BadInput(f"cannot allocate {size!r}", expected="a number of bytes") from None
    if size < 0:
        raise BadInput(f"cannot allocate {size} bytes", expected="a size from 0 up")
    return size


def foreign_error(resource: object, address: object) -> ForeignPointer:
    """The error for an address that the resource did not allocate."""
    shown = f"{int(address):#x}" if isinstance(address, SupportsInt) else repr(address)
    return ForeignPointer(
        f"{resource!r} did not allocate {shown}, or freed it before",
        expected="an address that allocate() returned and that was not freed since",
    )
