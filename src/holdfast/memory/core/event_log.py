"""The Python core's log of events, each with its Python stack (in C: `native/log.h`).

Taking a stack costs about a microsecond; it becomes files and lines only on demand.
"""

from __future__ import annotations

import sys
from array import array
from time import monotonic_ns
from types import FrameType
from typing import Any

from holdfast.memory.core.tag_counters import current_tag

ALLOC_EVENT, FREE_EVENT, RESERVE_EVENT, RELEASE_EVENT = 0, 1, 2, 3


class Log:
    """Rows of events, in the order they happen."""

    def __init__(self, depth: int = 1, skip: str = "") -> None:
        self.depth = depth
        self.on = 1
        self.lost = 0
        self.started_ns = monotonic_ns()
        self._skip = skip
        self._skipped: dict[str, bool] = {}  # file -> whether its frames are left out
        self._rows: list[tuple[int, ...]] = []
        self.write = self._rows.append  # a row as in `columns`, with the time not yet relative
        # A code object takes long to hash: the key has its id, the value keeps it alive.
        self._stacks: dict[tuple[int, ...], tuple[int, list[tuple[Any, int]]]] = {(): (0, [])}

    @property
    def count(self) -> int:
        return len(self._rows)

    def add(self, kind: int, address: int, size: int, place: int) -> None:
        """Log an event; an ALLOC with the stack of the caller."""
        stack = self.stack() if kind == ALLOC_EVENT else 0
        self.write((monotonic_ns(), kind, address, size, stack, place, current_tag()))

    def stack(self, above: int = 1) -> int:
        """The index of the caller's stack, without inner frames of files that start with `skip`.

        It begins `above` frames up; the frames below are known to be skipped.
        """
        depth = self.depth
        if depth <= 0:
            return 0
        frame: FrameType | None = sys._getframe(above)
        skipped = self._skipped
        while frame:
            code = frame.f_code
            inside = skipped.get(code.co_filename)
            if inside is None:
                inside = bool(self._skip) and code.co_filename.startswith(self._skip)
                skipped[code.co_filename] = inside
            if not inside:
                break
            frame = frame.f_back
        else:
            return 0
        if depth == 1:
            key: tuple[int, ...] = (id(code), frame.f_lasti)
            found = self._stacks.get(key)
            return found[0] if found else self._new_stack(key, [(code, frame.f_lasti)])
        frames = []
        while frame and len(frames) < depth:
            frames.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        key = tuple([part for code, at in frames for part in (id(code), at)])
        found = self._stacks.get(key)
        return found[0] if found else self._new_stack(key, frames)

    def _new_stack(self, key: tuple[int, ...], frames: list[tuple[Any, int]]) -> int:
        return self._stacks.setdefault(key, (len(self._stacks), frames))[0]

    def columns(self) -> tuple[bytes, ...]:
        rows = self._rows[:]
        times = array("q", [row[0] - self.started_ns for row in rows]).tobytes()
        codes = enumerate("BQqIHH", 1)
        return (times, *(array(code, [row[at] for row in rows]).tobytes() for at, code in codes))

    def stacks(self) -> list[list[tuple[Any, int]]]:
        """Every stack as (code, instruction), innermost first."""
        return [frames for _, frames in sorted(self._stacks.values(), key=lambda s: s[0])]

    def close(self) -> None:
        self.on = 0
        self._rows.clear()
        self._stacks = {(): (0, [])}
