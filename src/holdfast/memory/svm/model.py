"""Frozen values of shared virtual memory: domains, pages, migrations, statistics, metrics.

Unknown is None, never 0. Everything from a simulated machine has `simulated` set.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.base.codec import encode
from holdfast.memory.core.stats import Counter
from holdfast.topology.model import Node, Topology, distance_between

Mode = Literal["bind", "interleave", "preferred"]
MODES: tuple[Mode, ...] = ("bind", "interleave", "preferred")
PAGE_BYTES = mmap.PAGESIZE

# Called with (bytes done, bytes in all)
Progress = Callable[[int, int], object]
# Called between the chunks of a migration: whether to stop there
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Where memory can be: a NUMA node, a device's memory, or what a library calls a domain."""

    id: int
    name: str  # "node:0", "host", "opencl:0:0"
    kind: str | None = None  # dram, cxl, gpu, pmem
    total_bytes: int | None = None
    free_bytes: int | None = None  # for allocations, reclaimable caches included
    cpus: tuple[int, ...] = ()
    distances: tuple[int | None, ...] = ()  # to each domain, in their order; 10 is local


def node_domain(node: Node, **facts: Any) -> Domain:
    """The domain of a NUMA node; `facts` replace those of the node."""
    known = {name: getattr(node, name) for name in ("id", "total_bytes", "cpus", "distances")}
    return Domain(name=f"node:{node.id}", kind=node.memory_kind, **known | facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The domains of a provider at one moment."""

    provider: str
    domains: tuple[Domain, ...]
    simulated: bool = False
    free_bytes: int | None = None  # what a limit (control group) leaves this process
    topology: Topology | None = None  # of the machine, if known
    remarks: tuple[str, ...] = ()
    document: dict[str, Any] | None = None  # the answer of a vendor's library, unchanged

    def domain(self, number: int) -> Domain | None:
        return next((d for d in self.domains if d.id == number), None)

    def distance(self, source: int, target: int) -> int | None:
        """Distance between two domains as the kernel counts it: 10 is local."""
        return distance_between(self.domains, source, target)

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts, lists and scalars."""
        return encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where an allocation goes and why."""

    domains: tuple[int, ...]
    mode: Mode
    reason: str
    cpus: tuple[int, ...] = ()  # the work should run on
    near: str | None = None  # the request: "gpu:0"
    pinned: bool = False  # the caller named the domains, so autobalance leaves it there


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """In which domain each page of an allocation is."""

    pages: dict[int, int]  # by domain
    untouched: int = 0  # pages never used yet, so in no domain
    unknown: dict[str, int] = field(default_factory=dict)  # by reason
    page_bytes: int = PAGE_BYTES
    method: str = ""  # how this was found out
    verified: bool = False  # the kernel answered for every page
    simulated: bool = False

    @property
    def total(self) -> int:
        """Pages of all three kinds."""
        return sum(self.pages.values()) + self.untouched + sum(self.unknown.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The result of moving one chunk of an allocation, in pages."""

    moved: int = 0
    elsewhere: int = 0  # were not in the source domain
    not_moved: dict[str, int] = field(default_factory=dict)  # by reason

    def __add__(self, other: Chunk) -> Chunk:
        reasons = {
            r: self.not_moved.get(r, 0) + other.not_moved.get(r, 0)
            for r in (*self.not_moved, *other.not_moved)
        }
        return Chunk(
            moved=self.moved + other.moved,
            elsewhere=self.elsewhere + other.elsewhere,
            not_moved=reasons,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The result of a migration. Pages that were not moved are intact, where they were."""

    provider: str
    from_domain: int
    to_domain: int
    pages_moved: int
    pages_elsewhere: int  # were not in `from_domain` to begin with
    not_moved: dict[str, int]  # pages by reason
    seconds: float
    after: Where
    page_bytes: int = PAGE_BYTES
    interrupted: bool = False
    same_memory: bool = False  # both domains are the same memory: nothing was copied
    simulated: bool = False

    @property
    def complete(self) -> bool:
        """Whether every page of `from_domain` was moved."""
        return not self.not_moved and not self.interrupted

    @property
    def bytes_moved(self) -> int:
        """Bytes in the pages that were moved."""
        return self.pages_moved * self.page_bytes

    @property
    def bandwidth_gb_s(self) -> float | None:
        """10**9 bytes per second; None if nothing was copied, or only in a simulated machine."""
        if self.simulated or self.same_memory or not self.pages_moved or not self.seconds:
            return None
        return self.bytes_moved / self.seconds / 1e9

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts, lists and scalars, derived figures included."""
        more = {name: getattr(self, name) for name in ("complete", "bytes_moved", "bandwidth_gb_s")}
        return encode(self) | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counters of a provider at one moment."""

    seconds: float  # since the provider was first used
    event: str  # alloc, free, migrate
    current_bytes: int
    current_count: int
    migrated_bytes: int  # total


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a provider allocated, freed and migrated."""

    provider: str
    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int
    refused_count: int  # allocations that raised OutOfMemory
    migrations: int
    migrated_bytes: int
    simulated: bool = False
    document: dict[str, Any] | None = None  # a vendor library's own counters

    @classmethod
    def of(cls, counter: Counter, **more: Any) -> Statistics:
        """From a counter (current, peak and total) and the other fields."""
        return cls(**dataclasses.asdict(counter), **more)

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts and scalars."""
        return encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Where pages are at one moment: of one allocation, or of all of a provider."""

    provider: str
    pages: dict[int, int]  # by domain
    untouched: int
    local_pages: int | None  # on the nodes of the CPUs that run the work; None if unknown
    remote_pages: int | None
    page_bytes: int
    verified: bool
    cpus: tuple[int, ...]  # that run the work
    free_bytes: dict[int, int | None]  # by domain
    bandwidth_gb_s: dict[str, float]  # measured before: {"node:0 read by node:1": 11.2}
    kernel: dict[int, dict[str, int]]  # the kernel's own counters, by node
    statistics: Statistics
    history: tuple[Sample, ...]
    simulated: bool = False
    document: dict[str, Any] | None = None

    @property
    def local_ratio(self) -> float | None:
        """Share of the pages in use that are local, 0 to 1."""
        if self.local_pages is None or self.remote_pages is None:
            return None
        all_pages = self.local_pages + self.remote_pages
        return self.local_pages / all_pages if all_pages else None

    def to_dict(self) -> dict[str, Any]:
        """As plain dicts, lists and scalars."""
        return encode(self) | {"local_ratio": self.local_ratio}
