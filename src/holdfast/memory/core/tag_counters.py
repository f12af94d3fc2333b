"""Counters by tag number for the whole process, used by the Python core (in C: `native/tags.h`)."""

from __future__ import annotations

import threading

MAX_TAGS = 4096

_tags: dict[int, list[int]] = {}  # bytes, peak, total, count, peak, total
_parents: dict[int, int] = {}
_current = threading.local()
_ever_tagged = False  # reading a thread-local is slow, and most processes never set a tag


def set_tag(tag: int) -> int:
    """Set the tag of blocks that this thread allocates; returns the previous one."""
    if not 0 <= tag < MAX_TAGS:
        raise ValueError(f"tag number {tag} of {MAX_TAGS}")
    global _ever_tagged
    old = getattr(_current, "tag", 0)
    _current.tag = tag
    _ever_tagged = True
    return old


def declare_tag(tag: int, parent: int) -> None:
    """Start counting `tag`; `parent` counts what it counts, too."""
    if not 0 <= parent < tag < MAX_TAGS:
        raise ValueError(f"tag number {tag} below {parent}, of {MAX_TAGS}")
    _parents[tag] = parent
    _tags[tag] = [0] * 6


def current_tag() -> int:
    return getattr(_current, "tag", 0) if _ever_tagged else 0


def tag_counters(tag: int) -> tuple[int, ...]:
    """(current, peak, total) bytes of a tag, then the same for its number of blocks."""
    return tuple(_tags.get(tag, [0] * 6))


def set_tag_peaks(tag: int, peak_bytes: int, peak_count: int) -> None:
    """Set the peaks of a tag, but never below its current values."""
    counters = _tags[tag]
    counters[1] = max(peak_bytes, counters[0])
    counters[4] = max(peak_count, counters[3])


def add(tag: int, size: int) -> None:
    while tag:
        c = _tags[tag]
        c[0] += size
        c[1] = max(c[1], c[0])
        c[2] += size
        c[3] += 1
        c[4] = max(c[4], c[3])
        c[5] += 1
        tag = _parents[tag]


def remove(tag: int, size: int) -> None:
    while tag:
        _tags[tag][0] -= size
        _tags[tag][3] -= 1
        tag = _parents[tag]
