"""NUMA on Linux by raw system calls: bind pages and threads, move pages, ask where they are.

Covers: mbind, set_mempolicy, get_mempolicy, move_pages, thread affinity, private memory.
Leaves to others: deciding where things belong (measure, memory).
Promise: a call the kernel refuses raises Unsupported with the kernel's reason; nothing is left
bound by the context managers here, also when the body raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import platform
from array import array
from collections.abc import Iterator, Sequence

from holdfast.base.errors import Unsupported

# Numbers of the calls: (mbind, set_mempolicy, get_mempolicy, move_pages).
_CALLS = {
    "x86_64": (237, 238, 239, 279),
    "aarch64": (235, 237, 236, 239),
    "riscv64": (235, 237, 236, 239),
    "ppc64le": (259, 261, 260, 301),
}
DEFAULT, PREFERRED, BIND, INTERLEAVE = 0, 1, 2, 3
_MOVE, _STRICT = 1 << 1, 1 << 0
_MASK_WORDS = 16
_MASK_BITS = _MASK_WORDS * 64
PAGE_BYTES = mmap.PAGESIZE


def supported() -> bool:
    """Whether these calls exist on this system at all."""
    return platform.system() == "Linux" and platform.machine() in _CALLS


def bind(
    address: int,
    length: int,
    nodes: Sequence[int],
    mode: int = BIND,
    *,
    move: bool = True,
    strict: bool = True,
) -> None:
    """Have the pages of a region come from `nodes`; with `move`, those that are there already too.

    Interleaved and preferred pages are moved where that works; that a bound one could not be is an
    error where `strict`.
    """
    flags = 0 if mode == DEFAULT or not move else _MOVE | (_STRICT * (mode == BIND and strict))
    mask = _mask(nodes) if nodes else None
    _call(0, address, length, mode, mask, _MASK_BITS if nodes else 0, flags, what="mbind")


@contextlib.contextmanager
def allocating_on(nodes: Sequence[int], mode: int = BIND) -> Iterator[None]:
    """Within the block, new pages of this thread come from `nodes`."""
    before, before_nodes = ctypes.c_int(), (ctypes.c_ulong * _MASK_WORDS)()
    _call(2, ctypes.byref(before), before_nodes, _MASK_BITS, 0, 0, what="get_mempolicy")
    _call(1, mode, _mask(nodes), _MASK_BITS, what="set_mempolicy")
    try:
        yield
    finally:
        bits = _MASK_BITS if any(before_nodes) else 0
        _call(1, before.value, before_nodes if bits else None, bits, what="set_mempolicy")


@contextlib.contextmanager
def running_on(cpus: Sequence[int]) -> Iterator[None]:
    """Within the block, this thread runs on `cpus`."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as exc:
        raise Unsupported(
            f"cannot run on CPUs {sorted(cpus)}: {exc.strerror}",
            expected=f"some of the CPUs this process may use: {sorted(before)}",
        ) from exc
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def nodes_of(address: int, length: int, *, pid: int = 0) -> list[int]:
    """The node of every page; a negative number is the kernel's reason (-2: never touched).

    `pid` names another process, whose memory this one may look at.
    """
    count = -(-length // PAGE_BYTES)
    pages = array("Q", range(address, address + count * PAGE_BYTES, PAGE_BYTES))
    status = array("i", bytes(4 * count))
    _call(3, pid, count, _at(pages), None, _at(status), 0, what="move_pages")
    return status.tolist()


def move(pages: Sequence[int], node: int, *, pid: int = 0) -> list[int]:
    """Move the pages at these addresses to `node`: for each its node now, or the kernel's reason.

    A page that cannot be moved stays where it is, and its content with it. Raises Unsupported
    where the kernel refuses the whole call (no such node, not allowed).
    """
    count = len(pages)
    addresses, nodes = array("Q", pages), array("i", [node]) * count
    status = array("i", [-errno.EAGAIN]) * count  # for what the kernel does not get to
    arguments = (pid, count, _at(addresses), _at(nodes), _at(status), _MOVE)
    if _call(3, *arguments, what="move_pages", except_for=errno.ENOMEM) < 0:  # in the middle of it
        return [-errno.ENOMEM if code == -errno.EAGAIN else code for code in status]
    return status.tolist()


def _at(numbers: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


class Region(contextlib.AbstractContextManager["Region"]):
    """Private, page-aligned memory outside the Python heap, given back on close.

    Close fails while something (a memoryview, an array) still looks at it: nothing dangles.
    """

    def __init__(self, length: int, *, huge: bool = False) -> None:
        # Huge pages need private memory; mmap's default is shared.
        private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
        self._map = mmap.mmap(-1, length, flags=private) if private else mmap.mmap(-1, length)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.length = length
        self.buffer = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self.buffer.release()
        self._map.close()


def _mask(nodes: Sequence[int]) -> ctypes.Array[ctypes.c_ulong]:
    mask = (ctypes.c_ulong * _MASK_WORDS)()
    for node in nodes:
        if not 0 <= node < _MASK_BITS - 1:
            raise Unsupported(f"there is no NUMA node {node}", expected="a node that is online")
        mask[node // 64] |= 1 << (node % 64)
    return mask


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _call(index: int, *arguments: object, what: str, except_for: int | None = None) -> int:
    if not supported():
        raise Unsupported(
            f"{what} is not available on {platform.system()} {platform.machine()}",
            expected="Linux on " + ", ".join(_CALLS),
        )
    number = _CALLS[platform.machine()][index]
    typed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc().syscall(ctypes.c_long(number), *typed)
    if result < 0 and ctypes.get_errno() != except_for:
        raise _refused(what, ctypes.get_errno())
    return result


def _refused(what: str, code: int) -> Unsupported:
    reasons = {
        errno.EINVAL: "a node that is not online, or has no memory, was named",
        errno.ENODEV: "a node that is not online was named",
        errno.EPERM: "this process may not do that",
        errno.EIO: "some pages could not be moved",
        errno.ENOSYS: "this kernel was built without NUMA",
    }
    return Unsupported(
        f"the kernel refused {what}: {os.strerror(code)} ({reasons.get(code, 'no more is known')})",
        expected="nodes that holdfast topo lists, and a process allowed to use them",
    )
