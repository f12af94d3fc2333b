"""Memory limits of this process by Linux control groups; None means no limit."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.topology.sysfs import read, read_natural

# Version 1 writes the largest multiple of a page below 2**63 for "no limit".
_NO_LIMIT = 2**62
_VERSIONS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest limit of this process's group and its parents."""
    return min((limit for limit, _ in _groups(root)), default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """The bytes this process may still allocate; caches that can be dropped count as free."""
    return min((max(0, limit - used) for limit, used in _groups(root)), default=None)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    for folder, version in _folders(root):
        most, use, cached = _VERSIONS[version]
        limit = read_natural(folder / most)
        if limit is not None and limit < _NO_LIMIT:
            found = re.search(rf"(?m)^{cached} (\d+)$", read(folder / "memory.stat") or "")
            used = (read_natural(folder / use) or 0) - int(found[1] if found else 0)
            yield limit, max(0, used)


@functools.cache
def _folders(root: Path) -> tuple[tuple[Path, int], ...]:
    """Folders with a limit: this process's group and its parents, which do not change."""
    found: list[tuple[Path, int]] = []
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif "memory" in controllers.split(","):
            base, version = root / "sys/fs/cgroup/memory", 1
        else:
            continue
        folder = base / group.strip("/")
        folders = (p for p in (folder, *folder.parents) if p.is_relative_to(base))
        found += [(f, version) for f in folders if (f / _VERSIONS[version][0]).exists()]
    return tuple(found)
