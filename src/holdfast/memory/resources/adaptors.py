"""Resources that wrap a resource: `Statistics(Limit(Pool(Host()), "2GB"))`.

A refused request changes nothing. All adaptors are thread-safe.
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
from holdfast.memory.core.stats import Counter
from holdfast.memory.resources.resource import Blocks, Resource, check_size

_HERE = str(Path(__file__).parents[1])


class Adaptor:
    """Forwards everything to `upstream`; subclasses override what they change."""

    def __init__(self, upstream: Resource) -> None:
        self.upstream = upstream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.upstream!r})"

    @property
    def device(self) -> str:
        return self.upstream.device

    @property
    def pinned(self) -> bool:
        return bool(getattr(self.upstream, "pinned", False))

    def allocate(self, size: int) -> int:
        return self.upstream.allocate(size)

    def free(self, address: int) -> None:
        self.upstream.free(address)

    def owns(self, address: int) -> bool:
        return self.upstream.owns(address)

    def _free(self, address: int, _known: object) -> None:
        self.upstream.free(address)


class Limit(Adaptor):
    """Allows at most `limit` bytes at once; more is OutOfMemory, without asking upstream."""

    def __init__(self, upstream: Resource, limit: int | str) -> None:
        super().__init__(upstream)
        self.limit_bytes = parse_bytes(limit)
        self.used_bytes = 0
        self._blocks: Blocks[int] = Blocks(self)  # their sizes
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Limit({self.upstream!r}, {format_bytes(self.limit_bytes)!r})"

    def allocate(self, size: int) -> int:
        """The address of `size` bytes. Raises OutOfMemory above the limit."""
        with self._lock:
            free = self.limit_bytes - self.used_bytes
            if check_size(size) > free:
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
        size = self._blocks.remove(address, self._free)
        with self._lock:
            self.used_bytes -= size


class Statistics(Adaptor):
    """Counts current, peak and total bytes and blocks.

    `with statistics.measure() as inner:` counts what happens in the block; such blocks nest.
    """

    def __init__(self, upstream: Resource) -> None:
        super().__init__(upstream)
        self._counters = [Counter()]
        self._blocks: Blocks[int] = Blocks(self)  # their sizes
        self._lock = threading.RLock()

    @property
    def counter(self) -> Counter:
        """A copy of the counters since the beginning."""
        with self._lock:
            return replace(self._counters[0])

    def allocate(self, size: int) -> int:
        address = self.upstream.allocate(size)
        self._blocks.add(address, size)
        with self._lock:
            for counter in self._counters:
                counter.add(size)
        return address

    def free(self, address: int) -> None:
        size = self._blocks.remove(address, self._free)
        with self._lock:
            for counter in self._counters:
                counter.remove(size)

    @contextmanager
    def measure(self) -> Iterator[Counter]:
        """Counters that start at zero here and stop with the block."""
        counter = Counter()
        with self._lock:
            self._counters.append(counter)
        try:
            yield counter
        finally:
            with self._lock:
                self._counters = [c for c in self._counters if c is not counter]


@dataclass(frozen=True, slots=True)
class TrackedBlock:
    """A block in use: who allocated it, and when."""

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
        self._blocks: Blocks[TrackedBlock] = Blocks(self)

    def allocate(self, size: int) -> int:
        address = self.upstream.allocate(size)
        frame = sys._getframe(1)
        while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        code = frame.f_code
        held = TrackedBlock(
            *(address, size, code.co_filename, frame.f_lineno),
            *(code.co_qualname, time.monotonic()),
        )
        self._blocks.add(address, held)
        return address

    def free(self, address: int) -> None:
        self._blocks.remove(address, self._free)

    def tracked_blocks(self) -> list[TrackedBlock]:
        """Every block in use, largest first."""
        return sorted(self._blocks.all(), key=lambda held: -held.size)
