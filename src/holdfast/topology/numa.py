"""NUMA system calls of Linux: bind and move pages, bind threads, find the nodes of pages.

A call that the kernel refuses raises Unsupported with its reason. The context managers restore the
earlier binding, also when the body raises.
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

# System call numbers: (mbind, set_mempolicy, get_mempolicy, move_pages).
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


def is_supported() -> bool:
    """Whether this system has these calls."""
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
    """Allocate the pages of a region on `nodes`; with `move`, also move existing pages.

    With `strict`, raises Unsupported if a page could not be moved for BIND; other modes move what
    they can.
    """
    flags = 0 if mode == DEFAULT or not move else _MOVE | (_STRICT * (mode == BIND and strict))
    mask = _mask(nodes) if nodes else None
    _call(0, address, length, mode, mask, _MASK_BITS if nodes else 0, flags, what="mbind")


@contextlib.contextmanager
def allocating_on(nodes: Sequence[int], mode: int = BIND) -> Iterator[None]:
    """In the block, new pages of this thread are allocated on `nodes`."""
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
    """In the block, this thread runs on `cpus`."""
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
    """The node of each page of a process (0: this one), or a negative errno (-2: never touched)."""
    count = -(-length // PAGE_BYTES)
    pages = array("Q", range(address, address + count * PAGE_BYTES, PAGE_BYTES))
    status = array("i", bytes(4 * count))
    _call(3, pid, count, _at(pages), None, _at(status), 0, what="move_pages")
    return status.tolist()


def move(pages: Sequence[int], node: int, *, pid: int = 0) -> list[int]:
    """Move the pages at these addresses to `node`; returns the node of each, or a negative errno.

    A page that cannot be moved stays as it is. Raises Unsupported if the kernel refuses the whole
    call (no such node, not allowed).
    """
    count = len(pages)
    addresses, nodes = array("Q", pages), array("i", [node]) * count
    status = array("i", [-errno.EAGAIN]) * count  # for pages that the kernel does not reach
    arguments = (pid, count, _at(addresses), _at(nodes), _at(status), _MOVE)
    if _call(3, *arguments, what="move_pages", except_for=errno.ENOMEM) < 0:  # partly done
        return [-errno.ENOMEM if code == -errno.EAGAIN else code for code in status]
    return status.tolist()


def _at(numbers: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


class Region(contextlib.AbstractContextManager["Region"]):
    """Private, page-aligned memory outside the Python heap, freed on close.

    Closing raises BufferError while a memoryview or an array still refers to it.
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
    if not is_supported():
        raise Unsupported(
            f"{what} is not available on {platform.system()} {platform.machine()}",
            expected="Linux on " + ", ".join(_CALLS),
        )
    number = _CALLS[platform.machine()][index]
    typed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc().syscall(ctypes.c_long(number), *typed)
    if result < 0 and ctypes.get_errno() != except_for:
        raise _refusal(what, ctypes.get_errno())
    return result


def _refusal(what: str, code: int) -> Unsupported:
    reasons = {
        errno.EINVAL: "a node that is not online, or has no memory, was named",
        errno.ENODEV: "a node that is not online was named",
        errno.EPERM: "this process may not do that",
        errno.EIO: "some pages could not be moved",
        errno.ENOSYS: "this kernel was built without NUMA",
    }
    return Unsupported(
        f"the kernel refused {what}: {os.strerror(code)} ({reasons.get(code, 'no known reason')})",
        expected="nodes that holdfast topo lists, and a process allowed to use them",
    )
