"""Pages from the system, by address: reserve, make usable, lock, give back.

Covers: mmap, mprotect, madvise, mlock and munmap through ctypes, so that a reserved range can grow
in place.  Leaves to others: counting, and which pages to give back.
Promise: a range that is only reserved costs no memory; what the system refuses is a False or an
`OutOfMemory`, never a crash.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
from typing import Any

from holdfast.base.errors import OutOfMemory, Unsupported
from holdfast.base.units import format_bytes

_NONE, _READ, _WRITE = 0, 1, 2
_PRIVATE = 0x02
_ANONYMOUS = 0x20 if sys.platform == "linux" else 0x1000
_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_DONTNEED, _HUGEPAGE, _POPULATE_WRITE = 4, 14, 23
_FAILED = ctypes.c_void_p(-1).value
HUGE_PAGE = 2 << 20


@functools.cache
def _libc() -> Any:
    if os.name != "posix":
        raise Unsupported(
            f"memory by address is not made for {sys.platform}", expected="Linux or macOS"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    address, length, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, length, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = libc.mlock.argtypes = libc.munlock.argtypes = [address, length]
    libc.mprotect.argtypes = libc.madvise.argtypes = [address, length, number]
    return libc


def reserve(length: int) -> int:
    """The address of `length` bytes that nothing may touch yet, at the start of a huge page.

    Raises OutOfMemory where the system has no such range (a limit on address space, for one).
    """
    whole = length + HUGE_PAGE
    flags = _PRIVATE | _ANONYMOUS | _NORESERVE
    address = _libc().mmap(None, whole, _NONE, flags, -1, 0)
    if address in (None, _FAILED):
        raise OutOfMemory(
            f"the system has no {format_bytes(length)} of address space: "
            f"{os.strerror(ctypes.get_errno())}",
            expected="room in the address space (ulimit -v)",
        )
    start = -(-address // HUGE_PAGE) * HUGE_PAGE
    if start > address:
        release(address, start - address)
    release(start + length, address + whole - start - length)
    return start


def make_usable(address: int, length: int) -> bool:
    """Let a reserved range be read and written; its pages come when they are touched."""
    return _libc().mprotect(address, length, _READ | _WRITE) == 0


def make_unusable(address: int, length: int) -> bool:
    """Have every access to these pages end in a fault."""
    return _libc().mprotect(address, length, _NONE) == 0


def use_huge_pages(address: int, length: int) -> bool:
    """Ask for pages of 2 MB, where the kernel has them."""
    return sys.platform == "linux" and _libc().madvise(address, length, _HUGEPAGE) == 0


def touch(address: int, length: int) -> None:
    """Have every page of a fresh range come now, rather than when it is first used."""
    if sys.platform == "linux" and _libc().madvise(address, length, _POPULATE_WRITE) == 0:
        return
    ctypes.memset(address, 0, length)  # a kernel before 5.14


def give_pages_back(address: int, length: int) -> bool:
    """The content is gone and the memory free; the range stays usable."""
    return _libc().madvise(address, length, _DONTNEED) == 0


def lock(address: int, length: int) -> bool:
    """Keep these pages in memory."""
    return _libc().mlock(address, length) == 0


def release(address: int, length: int) -> None:
    """Give the range back, whatever it is."""
    if length:
        _libc().munmap(address, length)


def pages_touched(address: int, length: int) -> int:
    """How many pages of the range are in memory."""
    count = -(-length // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * count)()
    libc = _libc()
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), seen):
        return 0
    return sum(page & 1 for page in seen)


def register_with_cuda(address: int, length: int) -> bool:
    """Tell CUDA that these pages are locked, where torch runs on a CUDA device already."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    return int(torch.cuda.cudart().cudaHostRegister(address, length, 0)) == 0


def unregister_from_cuda(address: int) -> None:
    """Take that back."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.cudart().cudaHostUnregister(address)
