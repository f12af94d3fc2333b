"""Pages of the system by address: reserve, make usable, lock, discard, release (through ctypes).

A reserved range costs no memory and can become usable in place. A refusal by the system is a False
or an `OutOfMemory`.
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
            f"memory by address is not supported on {sys.platform}", expected="Linux or macOS"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    address, length, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, length, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = libc.mlock.argtypes = libc.munlock.argtypes = [address, length]
    libc.mprotect.argtypes = libc.madvise.argtypes = [address, length, number]
    return libc


def reserve(length: int) -> int:
    """Reserve address space, aligned to a huge page, with no access yet. Raises OutOfMemory."""
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
    """Allow reads and writes of a reserved range; pages come when they are first touched."""
    return _libc().mprotect(address, length, _READ | _WRITE) == 0


def make_unusable(address: int, length: int) -> bool:
    """Make every access to these pages fault."""
    return _libc().mprotect(address, length, _NONE) == 0


def use_huge_pages(address: int, length: int) -> bool:
    """Ask for 2 MB pages, if the kernel has them."""
    return sys.platform == "linux" and _libc().madvise(address, length, _HUGEPAGE) == 0


def touch(address: int, length: int) -> None:
    """Fault in every page of a fresh range now, rather than at its first use."""
    if sys.platform == "linux" and _libc().madvise(address, length, _POPULATE_WRITE) == 0:
        return
    ctypes.memset(address, 0, length)  # a kernel before 5.14


def discard_pages(address: int, length: int) -> bool:
    """Drop the content and free the memory of these pages; the range stays usable."""
    return _libc().madvise(address, length, _DONTNEED) == 0


def lock(address: int, length: int) -> bool:
    return _libc().mlock(address, length) == 0


def release(address: int, length: int) -> None:
    """Unmap the range."""
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
    """Register locked pages with CUDA, if torch uses a CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    return int(torch.cuda.cudart().cudaHostRegister(address, length, 0)) == 0


def unregister_from_cuda(address: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.cudart().cudaHostUnregister(address)
