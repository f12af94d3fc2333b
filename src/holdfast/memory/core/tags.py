"""Names for what memory is used for, nested, per thread, across all pools of the process.

    with memory.tag("vae") as vae:
        with memory.tag("decoder"):
            ...
    print(vae.peak_bytes)

A tag also counts what the tags inside it count. Leaving the `with` block by an error or Ctrl-C
restores the outer tag.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from holdfast.base.errors import BadInput
from holdfast.memory.core import native_build
from holdfast.memory.core.stats import Counter

_lock = threading.RLock()
_numbers: dict[str, int] = {"": 0}
_names: list[str] = [""]
_path = threading.local()
_inside: dict[int, list[_Entry]] = {}  # by tag: the `with` blocks that are running
_highest: dict[int, tuple[int, int]] = {}  # by tag: (bytes, count) peaks before the last reset
_switches: list[tuple[int, int]] | None = None  # (time.monotonic_ns(), tag); None: not kept


def keep_switches(keep: bool) -> None:
    """Start or stop recording when the tag changes, for events that are logged without a tag."""
    global _switches
    _switches = [] if keep else None


def switches() -> list[tuple[int, int]]:
    """(time.monotonic_ns(), tag number) for each change since `keep_switches`."""
    return list(_switches or ())


def names() -> list[str]:
    """Every tag so far; the index of a name is its number. The first is "no tag"."""
    return list(_names)


def counter(name: str) -> Counter:
    number = _numbers.get(name, 0)
    found = Counter(*native_build.core().tag_counters(number))
    bytes_before, count_before = _highest.get(number, (0, 0))
    found.peak_bytes = max(found.peak_bytes, bytes_before)
    found.peak_count = max(found.peak_count, count_before)
    return found


def counters() -> dict[str, Counter]:
    """The counters of all tags that counted something."""
    found = {name: counter(name) for name in names()[1:]}
    return {name: one for name, one in found.items() if one.total_count}


class _Entry:
    def __init__(self, outer: str, number: int) -> None:
        self.thread = threading.get_ident()
        self.outer, self.number = outer, number
        self.before = Counter()
        self.peak_bytes = self.peak_count = 0


def _collect_peaks(number: int) -> None:
    """Pass the peaks so far to all running blocks of a tag and to its total, and reset them."""
    core = native_build.core()
    now = Counter(*core.tag_counters(number))
    ever = _highest.get(number, (0, 0))
    _highest[number] = max(ever[0], now.peak_bytes), max(ever[1], now.peak_count)
    for entry in _inside.get(number, ()):
        entry.peak_bytes = max(entry.peak_bytes, now.peak_bytes)
        entry.peak_count = max(entry.peak_count, now.peak_count)
    core.set_tag_peaks(number, 0, 0)


class tag:
    """Gives a name to the blocks that this thread allocates inside the `with` block.

    `peak_bytes` and `peak_count` are those of this `with` block, even if the tag is used many
    times; `counter` has the figures of all of them.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise BadInput(f"cannot use {name!r} as a tag", expected="some text without a slash")
        self.name = name
        self.path = name
        self.peak_bytes = 0
        self.peak_count = 0
        self.allocated_bytes = 0  # allocated inside this `with` block, freed or not
        self.allocated_count = 0
        # One for each time it was entered: a tag may nest in itself, and run in several threads.
        self._entered: list[_Entry] = []

    def __enter__(self) -> Self:
        core = native_build.core()
        outer = getattr(_path, "now", "")
        self.path = f"{outer}/{self.name}" if outer else self.name
        entry = _Entry(outer, _number(self.path, outer))
        with _lock:
            _collect_peaks(entry.number)  # so that the peaks of this block begin here
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
        native_build.core().set_tag(_numbers[entry.outer])
        _path.now = entry.outer
        _note(_numbers[entry.outer])
        self.path = f"{entry.outer}/{self.name}" if entry.outer else self.name
        with _lock:
            _collect_peaks(entry.number)
            _inside[entry.number].remove(entry)
        now = self.counter
        self.peak_bytes, self.peak_count = entry.peak_bytes, entry.peak_count
        self.allocated_bytes = now.total_bytes - entry.before.total_bytes
        self.allocated_count = now.total_count - entry.before.total_count

    @property
    def counter(self) -> Counter:
        """The current figures of the tag."""
        return counter(self.path)


def _note(number: int) -> None:
    if _switches is not None:
        _switches.append((time.monotonic_ns(), number))


def _number(path: str, outer: str) -> int:
    with _lock:
        if path not in _numbers:
            number = len(_names)
            try:
                native_build.core().declare_tag(number, _numbers[outer])
            except ValueError as exc:
                raise BadInput(
                    f"cannot use the tag {path!r}: {exc}",
                    expected="a few thousand different tags at most",
                    hint="a tag for a kind of thing, not for each thing",
                ) from exc
            _names.append(path)
            _numbers[path] = number
        return _numbers[path]
