"""Page-aligned memory of the host, for providers that place pages themselves."""

from __future__ import annotations

import weakref
from pathlib import Path

from holdfast.memory.core import system_pages
from holdfast.memory.resources.resource import Host
from holdfast.memory.svm.ledger import Backing
from holdfast.memory.svm.model import PAGE_BYTES
from holdfast.topology import Topology
from holdfast.topology.sysfs import read_memory

_host = Host()
_TOUCHED_AT_ONCE = 64 << 20  # bytes; Ctrl-C is handled in between


class Pages:
    """A private, page-aligned range of pages."""

    def __init__(self, size: int) -> None:
        self.length = -(-size // PAGE_BYTES) * PAGE_BYTES
        self.address = _host.allocate(size)
        # Also frees it if Ctrl-C drops the object half way.
        self.close = weakref.finalize(self, _host.free, self.address)
        self.close.atexit = False

    @property
    def count(self) -> int:
        return self.length // PAGE_BYTES


class PagesBacking(Backing):
    """An allocation of pages that are always mapped."""

    def __init__(self, size: int) -> None:
        self.pages = Pages(size)
        self.address = self.pages.address

    def close(self) -> None:
        self.pages.close()


def touch(address: int, length: int) -> None:
    """Touch every page of a range, so that it is allocated now."""
    for offset in range(0, length, _TOUCHED_AT_ONCE):
        system_pages.touch(address + offset, min(_TOUCHED_AT_ONCE, length - offset))


def host_free(machine: Topology) -> int | None:
    """Free memory of the whole machine, reclaimable caches included."""
    return read_memory(Path("/proc/meminfo")).get("MemAvailable", machine.available_bytes)
