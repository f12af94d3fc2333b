"""Resources that wrap a resource: `Statistics(Limit(Pool(Host()), "2GB"))` reads as what it is.

Covers: a limit, counters, tracking of who holds what.  Leaves to others: `Pool` (pool), `Planned`.
Promise: a request that is refused changes nothing; every adaptor may be used by several threads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import format_bytes, format_seconds, parse_bytes
from holdfast.memory.resource import Blocks, Resource, checked
from holdfast.memory.stats import Counter

_HERE = str(Path(__file__).parent)


class Adaptor:
    """Passes everything on; the others change what they are about."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.upstream!r})"

    @property
    def device(self) -> str:
        """Where the memory lies."""
        return self.upstream.device

    @property
    def pinned(self) -> bool:
        """Whether its pages are locked."""
        return bool(getattr(self.upstream, "pinned", False))

    def allocate(self, size: int) -> int:
        """The address of `size` bytes."""
        return self.upstream.allocate(size)

    def free(self, address: int) -> None:
        """Take a block back."""
        self.upstream.free(address)

    def owns(self, address: int) -> bool:
        """Whether the address is this resource's."""
        return self.upstream.owns(address)

    def _free(self, address: int, _known: object) -> None:
        self.upstream.free(address)


class Limit(Adaptor):
    """At most so many bytes at once. More is OutOfMemory, before anybody is asked."""

    def __init__(self, upstream: Resource, limit: int | str) -> None:
        super().__init__(upstream)
        self.limit_bytes = parse_bytes(limit)
        self.used_bytes = 0
        self._blocks: Blocks[int] = Blocks(self)  # their sizes
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Limit({self.upstream!r}, {format_bytes(self.limit_bytes)!r})"

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, where the limit has room for them."""
        with self._lock:
            free = self.limit_bytes - self.used_bytes
            if checked(size) > free:
                raise OutOfMemory(
                    f"cannot allocate {format_bytes(size)}: {format_bytes(self.used_bytes)} of "
                    f"the limit of {format_bytes(self.limit_bytes)} are in use",
                    expected=f"at most {format_bytes(free)}",
                )
            self.used_bytes += size
        try:
            address = self.upstream.allocate(size)
        except BaseException:
            with self._lock:
                self.used_bytes -= size
            raise
        self._blocks.add(address, size)
        return address

    def free(self, address: int) -> None:
        """Take a block back; its bytes may be had again."""
        size = self._blocks.remove(address, self._free)
        with self._lock:
            self.used_bytes -= size


class Statistics(Adaptor):
    """Counts current, peak and total, of bytes and of blocks.

    `with statistics.measure() as inner:` counts what happens in the block, as deep as you like.
    """

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._counters = [Counter()]
        self._blocks: Blocks[int] = Blocks(self)  # their sizes
        self._lock = threading.RLock()

    @property
    def counter(self) -> Counter:
        """The figures since the beginning, as a copy."""
        with self._lock:
            return replace(self._counters[0])

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, counted."""
        address = self.upstream.allocate(size)
        self._blocks.add(address, size)
        with self._lock:
            for counter in self._counters:
                counter.add(size)
        return address

    def free(self, address: int) -> None:
        """Take a block back, counted."""
        size = self._blocks.remove(address, self._free)
        with self._lock:
            for counter in self._counters:
                counter.remove(size)

    @contextmanager
    def measure(self) -> Iterator[Counter]:
        """Counters that begin at zero here and stop with the block."""
        counter = Counter()
        with self._lock:
            self._counters.append(counter)
        try:
            yield counter
        finally:
            with self._lock:
                self._counters = [c for c in self._counters if c is not counter]


@dataclass(frozen=True, slots=True)
class Held:
    """A block in use: who asked for it, and when."""

    address: int
    size: int
    file: str
    line: int
    function: str
    since_s: float  # of time.monotonic()

    @property
    def location(self) -> str:
        """ "file:line in function"."""
        return f"{self.file}:{self.line} in {self.function}"

    def __str__(self) -> str:
        age = format_seconds(time.monotonic() - self.since_s)
        return f"{format_bytes(self.size)} from {self.location}, {age} ago"


class Tracking(Adaptor):
    """Remembers the source line of every block in use."""

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._blocks: Blocks[Held] = Blocks(self)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes."""
        address = self.upstream.allocate(size)
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        code = frame.f_code
        held = Held(
            *(address, size, code.co_filename, frame.f_lineno),
            *(code.co_qualname, time.monotonic()),
        )
        self._blocks.add(address, held)
        return address

    def free(self, address: int) -> None:
        """Take a block back and forget who had it."""
        self._blocks.remove(address, self._free)

    def held(self) -> list[Held]:
        """Every block in use, largest first."""
        return sorted(self._blocks.all(), key=lambda held: -held.size)
