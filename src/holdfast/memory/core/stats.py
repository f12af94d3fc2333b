"""Statistics of pools: `MemoryStats` and `Counter`, and `DetailedStats` over all pools.

active + inactive = reserved, and allocs - frees = blocks in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.base.codec import encode
from holdfast.base.units import format_bytes


@dataclass
class MemoryStats:
    """Memory of one pool, or of several added up, at one moment, in bytes."""

    allocated_bytes: int = 0  # requested by blocks in use
    reserved_bytes: int = 0  # taken from the system
    active_bytes: int = 0  # in blocks in use, rounding included
    inactive_bytes: int = 0  # reserved and in no block
    cached_bytes: int = 0  # the same: the most that empty_cache() could free
    peak_allocated: int = 0
    peak_reserved: int = 0
    num_allocs: int = 0
    num_frees: int = 0
    cache_hits: int = 0  # allocations that needed no memory from the system

    def update_allocation(self, size: int) -> None:
        self.allocated_bytes += size
        self.active_bytes += size
        self.reserved_bytes = max(self.reserved_bytes, self.active_bytes)
        self.inactive_bytes = self.cached_bytes = self.reserved_bytes - self.active_bytes
        self.peak_allocated = max(self.peak_allocated, self.allocated_bytes)
        self.peak_reserved = max(self.peak_reserved, self.reserved_bytes)
        self.num_allocs += 1

    def update_free(self, size: int) -> None:
        self.allocated_bytes -= size
        self.active_bytes -= size
        self.inactive_bytes = self.cached_bytes = self.reserved_bytes - self.active_bytes
        self.num_frees += 1

    def fragmentation_ratio(self) -> float:
        """The share of the reserved bytes that no block uses, from 0 to 1."""
        if self.reserved_bytes == 0:
            return 0.0
        return (self.reserved_bytes - self.allocated_bytes) / self.reserved_bytes

    def cache_hit_rate(self) -> float:
        """The share of allocations served without asking the system, from 0 to 1."""
        return self.cache_hits / self.num_allocs if self.num_allocs else 0.0

    def __add__(self, other: MemoryStats) -> MemoryStats:
        """Both together. The peak of a sum is not known; this gives its upper bound."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIELDS}
        return MemoryStats(**sums)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return encode(self) | {
            "fragmentation_ratio": self.fragmentation_ratio(),
            "cache_hit_rate": self.cache_hit_rate(),
        }

    def summary(self) -> str:
        """A few lines for people."""
        return "\n".join(
            (
                f"allocated   {format_bytes(self.allocated_bytes)} in "
                f"{self.num_allocs - self.num_frees} blocks, "
                f"at most {format_bytes(self.peak_allocated)}",
                f"reserved    {format_bytes(self.reserved_bytes)}, "
                f"at most {format_bytes(self.peak_reserved)}",
                f"cached      {format_bytes(self.cached_bytes)} "
                f"({self.fragmentation_ratio():.0%} of the reserved bytes are not in use)",
                f"requests    {self.num_allocs}, {self.cache_hit_rate():.1%} served from the cache",
            )
        )


_FIELDS = tuple(MemoryStats.__dataclass_fields__)


@dataclass
class Counter:
    """Current, peak and total bytes and number of blocks."""

    current_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0
    current_count: int = 0
    peak_count: int = 0
    total_count: int = 0

    def add(self, size: int) -> None:
        self.current_bytes += size
        self.total_bytes += size
        self.current_count += 1
        self.total_count += 1
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        self.peak_count = max(self.peak_count, self.current_count)

    def remove(self, size: int) -> None:
        self.current_bytes -= size
        self.current_count -= 1


@dataclass(frozen=True)
class LargeAllocation:
    """A block in use, and who allocated it."""

    size: int
    location: str  # "file:line in function", or that it is unknown
    device: str
    tag: str
    address: int

    def __str__(self) -> str:
        tag = f" [{self.tag}]" if self.tag else ""
        return f"{format_bytes(self.size)} on {self.device}{tag} from {self.location}"


@dataclass(frozen=True)
class DetailedStats:
    """All statistics at one moment, by device and by tag."""

    total_allocated: int  # bytes in use now, on all devices
    peak_allocated: int
    total_reserved: int
    fragmentation_ratio: float
    cache_hit_rate: float
    by_device: dict[str, MemoryStats] = field(default_factory=dict)
    by_tag: dict[str, Counter] = field(default_factory=dict)
    allocations: tuple[LargeAllocation, ...] = ()

    def get_large_allocations(self, min_size: int = 100 * 2**20) -> list[LargeAllocation]:
        """Blocks of at least `min_size` bytes, largest first."""
        return [block for block in self.allocations if block.size >= min_size]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        devices = {name: stats.to_dict() for name, stats in self.by_device.items()}
        return encode(self) | {"by_device": devices}

    def summary(self) -> str:
        """A page for people."""
        lines = []
        for name, stats in self.by_device.items():
            lines += [name, *("  " + line for line in stats.summary().splitlines())]
        for name, counter in self.by_tag.items():
            lines.append(
                f"tag {name}: {format_bytes(counter.current_bytes)} now, "
                f"{format_bytes(counter.peak_bytes)} at most, {counter.total_count} blocks in all"
            )
        lines += [f"  {block}" for block in self.allocations[:10]]
        return "\n".join(lines)
