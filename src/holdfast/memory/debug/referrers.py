"""Who refers to a block: variables of running frames, and chains of references up to a name.

Python's collector does not list everything: arrays, and tuples and dicts of things that cannot be
part of a cycle, are missing. So the whole heap is read once for those, and level by level for the
rest. References held by C code that does not report them are not found.

Work is bounded (`LEVELS`, `WIDEST`), and the search keeps nothing alive.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.memory.debug.referrer_text import (
    describe_path,
    is_a,
    is_array,
    is_block,
    is_named,
    is_of,
    variables,
)
from holdfast.memory.pools.movable import Movable

LEVELS = 10  # references upwards from a block
WIDEST = 400  # objects followed in one level
CHAINS = 3  # reported for one block
LONGEST = 8  # steps of a chain; longer ones are shortened
PART = 5000  # objects read at once
NOBODY = "nobody that Python can see: a C extension, or a reference that was never dropped"
Find = Callable[[int], Any]  # an address -> the block in use that it lies in, or None


def running_variables() -> Iterator[tuple[str, Any, types.FrameType]]:
    """(name, value, frame) of each variable of each running frame, in all threads."""
    for frame in _running_frames():
        if frame.f_code.co_filename != __file__:
            yield from ((name, value, frame) for name, value in variables(frame))


def block_of(value: Any, find: Find) -> Any:
    """The block that `value` is, or is a view of; None if it is neither."""
    for _ in range(64):
        if is_block(type(value)):
            return value
        try:
            value, found = _below(value, find)
        # A memoryview that was released, a tensor without storage, an object's own code.
        except (AttributeError, TypeError, ValueError, RuntimeError, HoldfastError):
            return None
        if found or value is None:
            return value
    return None


def _below(value: Any, find: Find) -> tuple[Any, bool]:
    """What `value` is a view of, and whether that is the answer."""
    kind = type(value)
    if kind is memoryview:
        return value.obj, False
    if is_of(value, "numpy", "ndarray"):
        if value.base is None or type(value.base).__name__ == "PyCapsule":
            return find(value.__array_interface__["data"][0]), True
        return value.base, False
    if is_of(value, "torch", "Tensor"):
        return find(value.untyped_storage().data_ptr()), True
    if kind is Movable:
        return value._block, False
    if is_a(value, ctypes.Array):
        return getattr(value, "block", None), False
    if hasattr(kind, "__memory_block__"):
        found = value.__memory_block__
        return (found() if callable(found) else found), False
    return None, True


def who_refers(blocks: list[Any], find: Find, running: dict[int, str]) -> dict[int, list[str]]:
    """For the id of each block, who refers to it, as text; the nearest first.

    `running` has texts for objects that variables of running frames are bound to, by id.
    """
    search = _Search(blocks, find, running)
    try:
        search.read_heap()
        search.climb()
        return {id(block): search.chains(block) for block in blocks}
    finally:
        search.forget()


class _Search:
    """References upwards from some blocks, kept as ids, so that the search does not find itself."""

    def __init__(self, blocks: list[Any], find: Find, running: dict[int, str]) -> None:
        self._find = find
        self._running = running
        self._known = {id(block): block for block in blocks}  # id -> object
        self._parents: dict[int, list[int]] = {}
        self._ours = {id(o) for o in (blocks, self._known, self, vars(self))}
        self._wanted = set(self._known)
        # No modules: what they hold is in their dictionaries. And asking `_asyncio` of Python 3.12
        # for its referents corrupts a list of its own, so that the next call never returns.
        self._objects = [one for one in gc.get_objects() if type(one) is not types.ModuleType]
        self._kinds: dict[type, int] = {dict: 1, tuple: 1}  # 1: may be untracked; 2: array

    def read_heap(self) -> None:
        """Find arrays, tensors, and containers that the collector does not list."""
        seen: set[int] = set()
        for part in self._parts():
            for one in part:
                if self._kind(one) == 2:
                    self._descend(one, seen)
            for one in gc.get_referents(*part):
                if self._kind(one) and id(one) not in seen and not gc.is_tracked(one):
                    self._descend(one, seen)

    def _parts(self) -> Iterator[list[Any]]:
        for start in range(0, len(self._objects), PART):
            yield self._objects[start : start + PART]

    def forget(self) -> None:
        """Drop all references: the search is among what it has found."""
        self._objects.clear()
        self._known.clear()

    def _kind(self, one: Any) -> int:
        kind = type(one)
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = 2 if is_array(one) else 0
        return found

    def _descend(self, one: Any, seen: set[int]) -> bool:
        """Whether it contains a wanted block; notes every object in between."""
        if id(one) in seen or id(one) in self._ours:
            return id(one) in self._known
        seen.add(id(one))
        if self._kind(one) == 2:
            block = block_of(one, self._find)
            if block is not None and id(block) in self._wanted:
                self._note(block, one)
        for child in _content(one):
            untracked = self._kind(child) and not gc.is_tracked(child)
            if id(child) in self._wanted or (untracked and self._descend(child, seen)):
                self._note(child, one)
        return id(one) in self._known

    def _note(self, child: Any, parent: Any) -> None:
        self._known[id(parent)] = parent
        above = self._parents.setdefault(id(child), [])
        if id(parent) not in above:
            above.append(id(parent))

    def climb(self) -> None:
        """Go up level by level, until everything has a name or nothing refers to it."""
        done: set[int] = set()
        for _ in range(LEVELS):
            level = {
                key: one
                for key, one in self._known.items()
                if key not in done and not is_named(one) and key not in self._running
            }
            for key in list(level)[WIDEST:]:
                del level[key]
            if not level:
                return
            done.update(level)
            self._one_level(level)

    def _one_level(self, level: dict[int, Any]) -> None:
        # Not gc.get_referrers(): it does not see that a task holds its result.
        for part in self._parts():
            if level.keys().isdisjoint(map(id, gc.get_referents(*part))):
                continue
            for parent in part:
                self._note_parent(parent, level)

    def _note_parent(self, parent: Any, level: dict[int, Any]) -> None:
        children = [child for child in gc.get_referents(parent) if id(child) in level]
        if not children or id(parent) in self._ours:
            return
        if is_a(parent, types.FrameType) and any(one is parent for one in _running_frames()):
            return
        for child in children:
            if child is not parent:
                self._note(child, parent)

    def chains(self, block: Any) -> list[str]:
        """Texts of the shortest chains from the block to something with a name."""
        named: list[str] = []
        ends: list[str] = []
        waiting: deque[tuple[int, ...]] = deque([(id(block),)])
        seen = {id(block)}
        while waiting and len(named) < CHAINS:
            path = waiting.popleft()
            last = path[-1]
            above = [key for key in self._parents.get(last, ()) if key not in seen]
            if last in self._running:
                named.append(self._describe(path, self._running[last]))
            elif len(path) > 1 and is_named(self._known[last]):
                named.append(self._describe(path))
            elif above:
                seen.update(above)
                waiting += [(*path, key) for key in above]
            elif len(path) > 1:
                ends.append(self._describe(path))
        texts = [text for text in named or sorted(ends, key=len, reverse=True)[:1] if text]
        return list(dict.fromkeys(texts)) or [NOBODY]

    def _describe(self, path: tuple[int, ...], last: str = "") -> str:
        parts = describe_path([self._known[key] for key in path])
        parts += [last] if last else []
        if len(parts) > LONGEST:
            parts[3:-2] = [f"({len(parts) - 5} more)"]
        return " ← ".join(parts)


def _content(one: Any) -> list[Any]:
    if is_of(one, "numpy", "ndarray"):
        return one.ravel().tolist() if one.dtype.hasobject and one.size <= 10_000 else []
    return [] if is_of(one, "torch", "Tensor") else gc.get_referents(one)


def _running_frames() -> Iterator[types.FrameType]:
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back
