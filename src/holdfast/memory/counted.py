"""Tags, counted for the whole process: the twin of `native/tags.h`.

Covers: the tag of a thread, counters of each tag and of the tags around it.
Leaves to others: names (tags).
"""

from __future__ import annotations

import threading

MAX_TAGS = 4096

_tags: dict[int, list[int]] = {}  # bytes, peak, total, count, peak, total
_parents: dict[int, int] = {}
_current = threading.local()
_ever_tagged = False  # looking at a thread's own variable costs; most processes never set a tag


def set_tag(tag: int) -> int:
    """New blocks of this thread carry `tag`; returns the tag before."""
    if not 0 <= tag < MAX_TAGS:
        raise ValueError(f"tag number {tag} of {MAX_TAGS}")
    global _ever_tagged
    old = getattr(_current, "tag", 0)
    _current.tag = tag
    _ever_tagged = True
    return old


def declare_tag(tag: int, parent: int) -> None:
    """`tag` counts from now on, and what it counts its parent counts too."""
    if not 0 <= parent < tag < MAX_TAGS:
        raise ValueError(f"tag number {tag} below {parent}, of {MAX_TAGS}")
    _parents[tag] = parent
    _tags[tag] = [0] * 6


def current_tag() -> int:
    """The tag of this thread."""
    return getattr(_current, "tag", 0) if _ever_tagged else 0


def tag_counters(tag: int) -> tuple[int, ...]:
    """Bytes now, at most, ever; and the same for the number of blocks."""
    return tuple(_tags.get(tag, [0] * 6))


def set_tag_peaks(tag: int, peak_bytes: int, peak_count: int) -> None:
    """Set the peaks, though never below the present values."""
    counters = _tags[tag]
    counters[1] = max(peak_bytes, counters[0])
    counters[4] = max(peak_count, counters[3])


def add(tag: int, size: int) -> None:
    """Count a block of `size` bytes."""
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
    """Count it no more."""
    while tag:
        _tags[tag][0] -= size
        _tags[tag][3] -= 1
        tag = _parents[tag]
