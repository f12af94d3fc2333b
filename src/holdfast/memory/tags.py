"""Names for what memory is used for, nested like a stop-watch.

    with memory.tag("vae") as vae:
        with memory.tag("decoder"):
            ...
    print(vae.peak_bytes)

Covers: tags of blocks from every pool of this process, per thread.
Promise: a tag counts what the tags inside it count; leaving the block by an error or Ctrl-C puts
the tag before it back.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from holdfast.base.errors import BadInput
from holdfast.memory import compiled
from holdfast.memory.stats import Counter

_lock = threading.RLock()
_numbers: dict[str, int] = {"": 0}
_names: list[str] = [""]
_path = threading.local()
_inside: dict[int, list[_Entry]] = {}  # by tag: the blocks that are being run
_highest: dict[int, tuple[int, int]] = {}  # by tag: peaks of what is over
_switches: list[tuple[int, int]] | None = None  # (time.monotonic_ns(), tag) while it is kept


def keep_switches(keep: bool) -> None:
    """Write down when the tag changes, for events that others record without it; or forget it."""
    global _switches
    _switches = [] if keep else None


def switches() -> list[tuple[int, int]]:
    """(time.monotonic_ns(), number of the tag) for each change since `keep_switches`."""
    return list(_switches or ())


def names() -> list[str]:
    """Every tag so far; the place of a name is its number. The first is "no tag"."""
    return list(_names)


def counter(name: str) -> Counter:
    """What a tag counts: "vae", or "vae/decoder" for a tag inside another."""
    number = _numbers.get(name, 0)
    found = Counter(*compiled.core().tag_counters(number))
    bytes_before, count_before = _highest.get(number, (0, 0))
    found.peak_bytes = max(found.peak_bytes, bytes_before)
    found.peak_count = max(found.peak_count, count_before)
    return found


def counters() -> dict[str, Counter]:
    """The same for every tag that ever counted something."""
    found = {name: counter(name) for name in names()[1:]}
    return {name: one for name, one in found.items() if one.total_count}


class _Entry:
    """A `with` block that is being run."""

    def __init__(self, outer: str, number: int) -> None:
        self.thread = threading.get_ident()
        self.outer, self.number = outer, number
        self.before = Counter()
        self.peak_bytes = self.peak_count = 0


def _carry(number: int) -> None:
    """Peaks so far go to everyone inside and to the tag as a whole, and begin anew."""
    core = compiled.core()
    now = Counter(*core.tag_counters(number))
    ever = _highest.get(number, (0, 0))
    _highest[number] = max(ever[0], now.peak_bytes), max(ever[1], now.peak_count)
    for entry in _inside.get(number, ()):
        entry.peak_bytes = max(entry.peak_bytes, now.peak_bytes)
        entry.peak_count = max(entry.peak_count, now.peak_count)
    core.set_tag_peaks(number, 0, 0)


class tag:
    """Blocks that this thread allocates inside the `with` block carry a name.

    `peak_bytes` and `peak_count` are those of this `with` block, also where the same tag is used
    again and again; `counter` has the figures of all of them.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise BadInput(f"cannot use {name!r} as a tag", expected="some text without a slash")
        self.name = name
        self.path = name
        self.peak_bytes = 0
        self.peak_count = 0
        self.allocated_bytes = 0  # by this block so far, freed or not
        self.allocated_count = 0
        # One for each time it is entered: a tag may be inside itself, and in several threads.
        self._entered: list[_Entry] = []

    def __enter__(self) -> Self:
        core = compiled.core()
        outer = getattr(_path, "now", "")
        self.path = f"{outer}/{self.name}" if outer else self.name
        entry = _Entry(outer, _number(self.path, outer))
        with _lock:
            _carry(entry.number)  # peaks begin anew; those who are inside keep what they saw
            entry.before = counter(self.path)
            _inside.setdefault(entry.number, []).append(entry)
        self._entered.append(entry)
        _path.now = self.path
        core.set_tag(entry.number)
        _note(entry.number)
        return self

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        entry = next(entry for entry in reversed(self._entered) if entry.thread == me)
        self._entered.remove(entry)
        compiled.core().set_tag(_numbers[entry.outer])
        _path.now = entry.outer
        _note(_numbers[entry.outer])
        self.path = f"{entry.outer}/{self.name}" if entry.outer else self.name
        with _lock:
            _carry(entry.number)
            _inside[entry.number].remove(entry)
        now = self.counter
        self.peak_bytes, self.peak_count = entry.peak_bytes, entry.peak_count
        self.allocated_bytes = now.total_bytes - entry.before.total_bytes
        self.allocated_count = now.total_count - entry.before.total_count

    @property
    def counter(self) -> Counter:
        """What the tag counts now."""
        return counter(self.path)


def _note(number: int) -> None:
    if _switches is not None:
        _switches.append((time.monotonic_ns(), number))


def _number(path: str, outer: str) -> int:
    with _lock:
        if path not in _numbers:
            number = len(_names)
            try:
                compiled.core().declare_tag(number, _numbers[outer])
            except ValueError as exc:
                raise BadInput(
                    f"cannot use the tag {path!r}: {exc}",
                    expected="a few thousand different tags at most",
                    hint="a tag for a kind of thing, not for each thing",
                ) from exc
            _names.append(path)
            _numbers[path] = number
        return _numbers[path]
