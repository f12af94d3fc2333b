"""The words of shared virtual memory, as frozen values.

Covers: domains, where pages are, what a migration did, statistics and metrics.
Leaves to others: getting and moving memory (providers), sentences for people (describe).
Promise: unknown is None, never 0; everything that is made up says `simulated`.
"""

from __future__ import annotations

import dataclasses
import mmap
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.base.codec import encode
from holdfast.memory.stats import Counter
from holdfast.topology.model import Topology

Mode = Literal["bind", "interleave", "preferred"]
MODES: tuple[Mode, ...] = ("bind", "interleave", "preferred")
PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A place memory can be in: a NUMA node, the memory of a device, what a library calls one."""

    id: int
    name: str  # "node:0", "host", "opencl:0:0"
    kind: str | None = None  # dram, cxl, gpu, pmem
    total_bytes: int | None = None
    free_bytes: int | None = None  # what an allocation can count on, caches included
    cpus: tuple[int, ...] = ()
    distances: tuple[int | None, ...] = ()  # to each domain, in their order; 10 is local


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The domains of a provider at one moment."""

    provider: str
    domains: tuple[Domain, ...]
    simulated: bool = False
    free_bytes: int | None = None  # what this process may take in all, where that is limited
    topology: Topology | None = None  # the machine around them, where it is known
    remarks: tuple[str, ...] = ()
    document: dict[str, Any] | None = None  # what a vendor's library said, word for word

    def domain(self, number: int) -> Domain | None:
        """The domain with that number."""
        return next((d for d in self.domains if d.id == number), None)

    def distance(self, source: int, target: int) -> int | None:
        """How far one domain is from another, 10 being local."""
        order = [d.id for d in self.domains]
        domain = self.domain(source)
        if domain is None or target not in order or len(domain.distances) != len(order):
            return None
        return domain.distances[order.index(target)]

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain dicts, lists and scalars."""
        return encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where an allocation goes and why."""

    domains: tuple[int, ...]
    mode: Mode
    reason: str
    cpus: tuple[int, ...] = ()  # those the work should run on
    near: str | None = None  # what it was asked to be near: "gpu:0"
    pinned: bool = False  # the domains were named: only who named them moves it


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """In which domain each page of an allocation is."""

    pages: dict[int, int]  # by domain
    untouched: int = 0  # pages that nobody used yet, so they are nowhere
    unknown: dict[str, int] = field(default_factory=dict)  # by the reason why it is not known
    page_bytes: int = PAGE_BYTES
    method: str = ""  # how this is known
    verified: bool = False  # whether the system was asked, page by page
    simulated: bool = False

    @property
    def total(self) -> int:
        """All pages."""
        return sum(self.pages.values()) + self.untouched + sum(self.unknown.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What moving a part of an allocation did, in pages."""

    moved: int = 0
    elsewhere: int = 0  # were not in the domain to move from
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
    """What a migration did. What was not moved is whole, and where it was."""

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
    same_memory: bool = False  # the two domains are one memory: no byte had to be copied
    simulated: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is left in `from_domain` that was to be moved."""
        return not self.not_moved and not self.interrupted

    @property
    def bytes_moved(self) -> int:
        """Bytes in the pages that were moved."""
        return self.pages_moved * self.page_bytes

    @property
    def bandwidth_gb_s(self) -> float | None:
        """10**9 bytes a second; None where nothing was copied, or only in a made-up machine."""
        if self.simulated or self.same_memory or not self.pages_moved or not self.seconds:
            return None
        return self.bytes_moved / self.seconds / 1e9

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain dicts, lists and scalars, with the figures that follow from it."""
        more = {name: getattr(self, name) for name in ("complete", "bytes_moved", "bandwidth_gb_s")}
        return encode(self) | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counters of a provider at one moment."""

    seconds: float  # since the provider was first used
    event: str  # alloc, free, migrate
    current_bytes: int
    current_count: int
    migrated_bytes: int  # in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a provider handed out, took back and moved."""

    provider: str
    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int
    refused_count: int  # allocations that could not be had
    migrations: int
    migrated_bytes: int
    simulated: bool = False
    document: dict[str, Any] | None = None  # what a vendor's library counts itself

    @classmethod
    def of(cls, counter: Counter, **more: Any) -> Statistics:
        """From the six figures every counter has."""
        return cls(**dataclasses.asdict(counter), **more)

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain dicts and scalars."""
        return encode(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How memory lies in the machine at one moment: of one allocation, or of all of a provider."""

    provider: str
    pages: dict[int, int]  # by domain
    untouched: int
    local_pages: int | None  # beside the CPUs that run the work; None where nobody can tell
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
        """All of it in plain dicts, lists and scalars."""
        return encode(self) | {"local_ratio": self.local_ratio}
