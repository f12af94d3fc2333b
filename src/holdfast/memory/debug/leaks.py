"""Leaks: blocks that outlive the code that made them, and who holds them.

The rule: a leak is a block that was allocated since debugging was enabled, or since the last
`mark()`, and is alive after a garbage collection, unless a variable of a running frame is bound to
it: to the block, or to an array, a tensor, a memoryview or a handle over it. The top level of a
running script is such a frame; so are the frames of other threads.

The reason: what running code holds by name is in use, until the code ends or says `del`. What sits
in a list, a cache, an attribute, a closure, a suspended generator or a frame kept by a traceback
stays for as long as that does, with no end in sight: that is how memory grows. Such a container may
be meant to hold it; then call `mark()` after filling it. A reference cycle that nothing else holds
is collected first, and is not a leak.
"""

from __future__ import annotations

import bisect
import functools
import gc
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, ParamSpec, Self, TypeVar

from holdfast.base.errors import HoldfastError, Misuse
from holdfast.base.units import format_bytes, format_seconds
from holdfast.memory.debug import debugging, referrers
from holdfast.memory.debug.quarantine import Record
from holdfast.memory.profile.recording import Frame

mark = debugging.mark
SEARCHED = 50  # leaks whose referrers are searched: the largest of each location
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Leak:
    """A block that outlived the code that made it."""

    location: str  # "file:line in function", of the innermost frame outside of this layer
    size: int  # requested bytes
    age_s: float
    stack: tuple[Frame, ...]  # innermost first
    tag: str
    device: str
    address: int
    referrers: list[str] = field(default_factory=list)  # who holds it, as text

    def __str__(self) -> str:
        tag = f" [{self.tag}]" if self.tag else ""
        held = "; ".join(self.referrers)
        return (
            f"{format_bytes(self.size)} on {self.device}{tag} from {self.location}, "
            f"{format_seconds(self.age_s)} ago; held by {held}"
        )


class LeakFound(HoldfastError, AssertionError):
    """Blocks outlived the code that should have freed them; they are in `leaks`."""

    leaks: tuple[Leak, ...] = ()


def check_memory_leaks() -> list[Leak]:
    """Every leak (see above), largest first. Raises Misuse if debugging was never on."""
    since = debugging.first_leak_number()
    if since is None:
        raise Misuse(
            "cannot find leaks: memory debugging was never on",
            expected="enable_memory_debugging(True) before the code in question",
        )
    return _leaks(since)


def summary(leaks: list[Leak]) -> str:
    """A few lines of text: leaks of one stack are one line, the most bytes first."""
    if not leaks:
        return "no leaks"
    groups: dict[tuple[Frame, ...], list[Leak]] = {}
    for leak in leaks:
        groups.setdefault(leak.stack, []).append(leak)
    ordered = sorted(groups.values(), key=lambda group: -sum(leak.size for leak in group))
    total = format_bytes(sum(leak.size for leak in leaks))
    blocks = f"{len(leaks)} block{'s' if len(leaks) > 1 else ''}"
    lines = [f"{total} leaked in {blocks}"]
    for group in ordered:
        size = format_bytes(sum(leak.size for leak in group))
        count = f" in {len(group)} blocks" if len(group) > 1 else ""
        held = "; ".join(group[0].referrers)
        lines.append(f"  {size}{count} from {group[0].location}; held by {held}")
    return "\n".join(lines)


class no_leaks:
    """For tests: raises LeakFound if a block that was allocated inside is still there at the end.

        with no_leaks():
            train_one_step()

    Also a decorator, `@no_leaks()`. Debugging is on inside. After an exception nothing is checked:
    its traceback holds the variables of every frame.
    """

    returned: Any = None  # belongs to the caller: neither it nor its content is a leak

    def __enter__(self) -> Self:
        self._on_before = debugging.is_enabled()
        if not self._on_before:
            debugging.enable_memory_debugging(True)
        self._since = debugging.next_number()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            found = _leaks(self._since, self.returned) if kind is None else []
        finally:
            if not self._on_before:
                debugging.enable_memory_debugging(False)
        if found:
            error = LeakFound(summary(found), expected="no block that outlives this code")
            error.leaks = tuple(found)
            raise error

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Check each call of `function`; its result belongs to the caller, and is not a leak."""

        @functools.wraps(function)
        def call_checked(*args: P.args, **kwargs: P.kwargs) -> R:
            with no_leaks() as guard:
                result = function(*args, **kwargs)
                guard.returned = result
            return result

        return call_checked


def _leaks(since: int, returned: Any = None) -> list[Leak]:
    gc.collect()
    gc.collect()  # what the finalizers of the first run released
    find = _Finder()
    running: dict[int, str] = {}
    held: set[int] = set()
    for name, value, frame in referrers.running_variables():
        block = referrers.block_of(value, find)
        if block is not None:
            held.add(id(block))
        elif id(value) not in running:
            running[id(value)] = _describe_variable(name, value, frame)
    returned_blocks = (referrers.block_of(value, find) for value in _content(returned))
    held.update(id(block) for block in returned_blocks if block is not None)
    found = [
        record
        for record in debugging.live_records()
        if record.number >= since and id(record.block()) not in held
    ]
    found.sort(key=lambda record: (-record.size, record.number))
    return _make_leaks(found, find, running)


def _content(value: Any, depth: int = 4) -> Iterator[Any]:
    """A value, and its items if it is a list, a tuple, a set or a dict."""
    yield value
    if depth and isinstance(value, list | tuple | set | frozenset | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _content(item, depth - 1)


class _Finder:
    def __init__(self) -> None:
        self._records = sorted(debugging.live_records(), key=lambda record: record.address)
        self._starts = [record.address for record in self._records]

    def __call__(self, address: int) -> Any:
        at = bisect.bisect_right(self._starts, address) - 1
        if not address or at < 0:
            return None
        record = self._records[at]
        return record.block() if address < record.address + max(record.size, 1) else None


def _describe_variable(name: str, value: Any, frame: Any) -> str:
    kind = type(value).__name__
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return f"global {name!r} ({kind}) of module {frame.f_globals.get('__name__')}"
    return f"local {name!r} ({kind}) of {frame.f_code.co_qualname}, which runs"


def _make_leaks(
    found: list[Record], find: Callable[[int], Any], running: dict[int, str]
) -> list[Leak]:
    chosen: dict[int, Record] = {}
    places: dict[tuple[Any, ...], int] = {}
    for record in sorted(found, key=lambda r: _rank(r, places)):
        if len(chosen) < SEARCHED:
            chosen[record.number] = record
    words: dict[int, list[str]] = {}
    blocks = [block for record in chosen.values() if (block := record.block()) is not None]
    if blocks:
        by_id = referrers.who_refers(blocks, find, running)
        words = {n: by_id.get(id(record.block()), []) for n, record in chosen.items()}
    now = monotonic_ns()
    unknown = [f"not searched (only for the {SEARCHED} largest)"]
    return [
        Leak(
            location=record.location,
            size=record.size,
            age_s=(now - record.time_ns) / 1e9,
            stack=record.frames,
            tag=record.tag,
            device=record.owner.device,
            address=record.address,
            referrers=words.get(record.number, unknown),
        )
        for record in found
    ]


def _rank(record: Record, places: dict[tuple[Any, ...], int]) -> int:
    """Sort key: the first leak of each location comes before the second of any."""
    places[record.stack] = places.get(record.stack, 0) + 1
    return places[record.stack]
