"""Pages of a running process by NUMA node, and moving them with move_pages.

Reads /proc/PID/numa_maps together with maps, or smaps if the kernel has no NUMA. A page that cannot
be moved stays intact where it is.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.errors import Absent, BadInput, Unsupported
from holdfast.memory.svm import choice
from holdfast.memory.svm.interface import CHUNK_BYTES
from holdfast.memory.svm.model import PAGE_BYTES, Chunk, Migration, Progress, Stop, Where
from holdfast.memory.svm.placement import check_room, domain_of
from holdfast.memory.svm.providers import numa

PROC = Path("/proc")
_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+ *(.*)")
_NODE = re.compile(r"N(\d+)=(\d+)")
_PAGE = re.compile(r"kernelpagesize_kB=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One mapping of a process, and how many of its pages are in each node."""

    address: int
    length: int
    name: str  # a file, [heap], [stack], or "anonymous"
    policy: str  # "default", "bind:0", "interleave:0-1"
    pages: dict[int, int] = field(default_factory=dict)  # by node, of `page_bytes` each
    page_bytes: int = PAGE_BYTES
    verified: bool = True  # the kernel counted by node

    @property
    def resident_bytes(self) -> int:
        return sum(self.pages.values()) * self.page_bytes


def regions(pid: int, *, proc: Path = PROC) -> tuple[Region, ...]:
    """The mappings of a process, largest resident size first.

    Raises BadInput if there is no such process, Unsupported if this user may not read its memory
    map or the system has no /proc.
    """
    folder = _folder(pid, proc)
    if (folder / "numa_maps").exists():
        maps, counted = _read(folder / "maps", pid), _read(folder / "numa_maps", pid)
        found = list(parse_numa_maps(counted, maps))
    else:
        found = list(parse_smaps(_read(folder / "smaps", pid)))
    return tuple(sorted(found, key=lambda region: (-region.resident_bytes, region.address)))


def pages(pid: int, *, proc: Path = PROC) -> Where:
    """The pages of a process by node, all mappings together."""
    return total(regions(pid, proc=proc))


def total(some: Iterable[Region]) -> Where:
    """The pages of several mappings by node, counted in pages of PAGE_BYTES."""
    counted: Counter[int] = Counter()
    verified = True
    for region in some:
        verified = verified and region.verified
        for node, count in region.pages.items():
            counted[node] += count * (region.page_bytes // PAGE_BYTES)
    method = "numa_maps of the kernel" if verified else "smaps of a kernel without NUMA"
    return Where(pages=dict(sorted(counted.items())), method=method, verified=verified)


def move(
    pid: int,
    source: int,
    target: int,
    *,
    address: int | None = None,
    length: int | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Migration:
    """Move the pages of a process from one node to another, in chunks of 16 MiB.

    `address` and `length` limit it to a range. After each chunk `progress(done, total)` is called
    with bytes of pages found, before each one `stop()`. Raises BadInput for an unknown node or
    process, OutOfMemory if it does not fit, Unsupported if the kernel refuses.
    """
    layout = choice.provider("numa").discover()
    domain_of(layout, source)
    to = domain_of(layout, target)
    found = regions(pid)
    work = [] if source == target else list(_ranges(found, source, address, length))
    if work:
        check_room(layout, sum(r.wanted_pages for r in work) * PAGE_BYTES, to, "migrate")
    began = time.perf_counter()
    chunk, interrupted = _move(pid, work, source, target, progress, stop)
    seconds = time.perf_counter() - began
    return Migration(
        provider=f"numa, process {pid}",
        from_domain=source,
        to_domain=target,
        pages_moved=chunk.moved,
        pages_elsewhere=0,  # pages of other nodes were not looked at
        not_moved=chunk.not_moved,
        seconds=seconds,
        after=_after(pid),
        interrupted=interrupted,
    )


def parse_numa_maps(text: str, maps: str) -> Iterator[Region]:
    """Mappings in both numa_maps, which has their start, and maps, which has their end."""
    # Split at "\n" and " " alone: file names may contain any other separator.
    ends = {int(m[1], 16): m for m in map(_MAP.match, maps.split("\n")) if m}
    for line in filter(None, text.split("\n")):
        start, policy, *words = line.split(" ")
        where = ends.get(int(start, 16))
        if where is None:
            continue
        nodes = {int(m[1]): int(m[2]) for m in map(_NODE.fullmatch, words) if m}
        page = next((int(m[1]) for m in map(_PAGE.fullmatch, words) if m), PAGE_BYTES >> 10)
        yield _region(where, page, policy, pages=dict(sorted(nodes.items())))


def _region(where: re.Match[str], page_kib: int, policy: str = "default", **more: Any) -> Region:
    """The mapping of a line of maps."""
    start, end = int(where[1], 16), int(where[2], 16)
    name, page_bytes = where[4] or "anonymous", page_kib << 10
    return Region(
        address=start, length=end - start, name=name, policy=policy, page_bytes=page_bytes, **more
    )


def parse_smaps(text: str) -> Iterator[Region]:
    """Mappings from smaps; a kernel without NUMA has all memory in node 0."""
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text):
        where = _MAP.match(block)
        if where is None:
            continue
        sizes = dict(re.findall(r"(?m)^(\w+): +(\d+) kB$", block))
        page = int(sizes.get("KernelPageSize", PAGE_BYTES >> 10))
        count = int(sizes.get("Rss", 0)) // page
        yield _region(where, page, pages={0: count} if count else {}, verified=False)


def _folder(pid: int, proc: Path) -> Path:
    if not (proc / "self").exists():
        raise Unsupported("the memory of processes cannot be read", expected="Linux with /proc")
    if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
        raise BadInput(f"{pid!r} is no process", expected="a process number, 1 or more")
    if not (proc / str(pid)).is_dir():
        raise _handle_is_gone(pid)
    return proc / str(pid)


def _read(path: Path, pid: int) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="backslashreplace")
    except PermissionError as exc:
        raise Unsupported(
            f"this user may not read the memory map of process {pid}",
            expected="a process of the same user, or the right to trace it",
            hint=None if os.geteuid() == 0 else "sudo",
        ) from exc
    except (FileNotFoundError, ProcessLookupError) as exc:
        raise _handle_is_gone(pid) from exc


def _handle_is_gone(pid: int) -> BadInput:
    return BadInput(
        f"there is no process {pid}",
        expected="the number of a running process",
        hint="ps, or pgrep",
    )


def _after(pid: int) -> Where:
    try:
        return pages(pid)
    except BadInput:  # it ended after the move
        return Where(pages={}, method="the process has ended")


@dataclass(frozen=True, slots=True)
class _Range:
    """A range to search until `wanted_pages` pages of the source node were found."""

    address: int
    length: int
    wanted_pages: int


def _ranges(
    found: Iterable[Region], source: int, address: int | None, length: int | None
) -> Iterator[_Range]:
    first = 0 if address is None else address // PAGE_BYTES * PAGE_BYTES
    last = None if address is None or length is None else address + length
    for region in sorted(found, key=lambda r: r.address):
        begin, end = max(region.address, first), region.address + region.length
        end = end if last is None else min(end, last)
        count = region.pages.get(source, 0) * (region.page_bytes // PAGE_BYTES)
        if count and begin < end:
            yield _Range(begin, end - begin, min(count, -(-(end - begin) // PAGE_BYTES)))


def _move(
    pid: int,
    work: list[_Range],
    source: int,
    target: int,
    progress: Progress | None,
    stop: Stop | None,
) -> tuple[Chunk, bool]:
    chunk = Chunk()
    whole, before = sum(part.wanted_pages for part in work) * PAGE_BYTES, 0
    for part in work:
        seen = 0
        for offset in range(0, part.length, CHUNK_BYTES):
            if seen >= part.wanted_pages:
                break  # skip the rest of what may be a large, mostly empty range
            if stop is not None and stop():
                return chunk, True
            length = min(CHUNK_BYTES, part.length - offset)
            done = _move_part(pid, part.address + offset, length, source, target)
            seen += done.moved + sum(done.not_moved.values())
            chunk += done
            if progress is not None:
                progress(before + min(seen, part.wanted_pages) * PAGE_BYTES, whole)
        before += part.wanted_pages * PAGE_BYTES
    return chunk, False


def _move_part(pid: int, address: int, length: int, source: int, target: int) -> Chunk:
    try:
        return numa.move_range(address, length, source, target, pid=pid)
    except Unsupported as exc:
        if (PROC / str(pid)).is_dir():
            raise
        raise Absent(  # the kernel reports only that there is no such process
            f"process {pid} ended while its memory was moved", expected="a process that runs on"
        ) from exc
