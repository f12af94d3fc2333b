"""Pages of the host for providers that place them themselves, and how many there still are."""

from __future__ import annotations

import weakref
from pathlib import Path

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes
from holdfast.memory import system
from holdfast.memory.svm.model import PAGE_BYTES
from holdfast.topology import Topology
from holdfast.topology.sysfs import read_memory

_TOUCHED_AT_ONCE = 64 << 20  # Ctrl-C gets through between these


class Pages:
    """A private range of whole pages that begins at a page."""

    def __init__(self, size: int) -> None:
        self.length = -(-size // PAGE_BYTES) * PAGE_BYTES
        self.address = system.reserve(self.length)
        # Whoever drops it, by Ctrl-C in the middle of something, gives it back.
        self.close = weakref.finalize(self, system.release, self.address, self.length)
        self.close.atexit = False
        if not system.make_usable(self.address, self.length):
            self.close()
            raise OutOfMemory(
                f"the system has no {format_bytes(size)} of memory",
                expected="memory, and no limit on it (ulimit -v, vm.overcommit_memory)",
            )

    @property
    def count(self) -> int:
        """How many pages."""
        return self.length // PAGE_BYTES


def touch(address: int, length: int) -> None:
    """Have every page of a range come now; where that is broken off the caller gives it back."""
    for offset in range(0, length, _TOUCHED_AT_ONCE):
        system.touch(address + offset, min(_TOUCHED_AT_ONCE, length - offset))


def host_free(machine: Topology) -> int | None:
    """What programs can still get of the whole machine, caches included."""
    return read_memory(Path("/proc/meminfo")).get("MemAvailable", machine.available_bytes)
