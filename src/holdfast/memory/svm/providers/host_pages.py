"""Page-aligned memory of the host, for providers that place pages themselves."""

from __future__ import annotations

import weakref
from pathlib import Path

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.memory.core import system_pages
from holdfast.memory.svm.model import PAGE_BYTES
from holdfast.topology import Topology
from holdfast.topology.sysfs import read_memory

_TOUCHED_AT_ONCE = 64 << 20  # bytes; Ctrl-C is handled in between


class Pages:
    """A private, page-aligned range of pages."""

    def __init__(self, size: int) -> None:
        self.length = -(-size // PAGE_BYTES) * PAGE_BYTES
        self.address = system_pages.reserve(self.length)
        # Also frees it if Ctrl-C drops the object half way.
        self.close = weakref.finalize(self, system_pages.release, self.address, self.length)
        self.close.atexit = False
        if not system_pages.make_usable(self.address, self.length):
            self.close()
            raise OutOfMemory(
                f"the system has no {format_bytes(size)} of memory",
                expected="memory, and no limit on it (ulimit -v, vm.overcommit_memory)",
            )

    @property
    def count(self) -> int:
        """Number of pages."""
        return self.length // PAGE_BYTES


def touch(address: int, length: int) -> None:
    """Touch every page of a range, so that it is allocated now."""
    for offset in range(0, length, _TOUCHED_AT_ONCE):
        system_pages.touch(address + offset, min(_TOUCHED_AT_ONCE, length - offset))


def host_free(machine: Topology) -> int | None:
    """Free memory of the whole machine, reclaimable caches included."""
    return read_memory(Path("/proc/meminfo")).get("MemAvailable", machine.available_bytes)
