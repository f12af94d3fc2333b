"""Blocks behind a handle that may move, or be spilled to disk, while nobody holds them.

An address is valid only while the handle is held, and a held handle never moves.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from typing import IO, Any

from holdfast.base.errors import InUse, UseAfterFree
from holdfast.base.units import format_bytes
from holdfast.memory.core.protocols import Block, BlockPool


class Movable:
    """Memory whose address may change between two uses.

    weights = pool.allocate_movable("1GB")
    with weights as block:          # does not move inside
        block.array("float32")[:] = 0
    """

    def __init__(self, pool: BlockPool, size: int, spill: bool) -> None:
        self.size = size
        self.may_spill = spill
        self._pool = pool
        self._lock = threading.RLock()
        self._holders = 0
        self._file: IO[bytes] | None = None
        self._close_file: Callable[[], object] = lambda: None
        self._block: Block | None = pool.allocate(size)

    def __repr__(self) -> str:
        return f"<Movable of {format_bytes(self.size)}, {self.place}>"

    @property
    def place(self) -> str:
        """ "held", "in memory", "on disk" or "freed"."""
        if self._block is not None:
            return "held" if self._holders else "in memory"
        return "on disk" if self._file is not None else "freed"

    def __enter__(self) -> Block:
        with self._lock:
            block = self._block if self._block is not None else self._reload()
            self._holders += 1
            return block

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._holders -= 1

    def free(self) -> None:
        """Free the memory, or the space on disk. Raises InUse while it is held."""
        with self._lock:
            if self._holders:
                raise InUse(
                    f"{self!r} cannot be freed", expected="one that is not in a `with` block"
                )
            self._block = self._file = None
            self._close_file()

    def spill(self) -> int:
        """Write the content to disk and free the memory; returns the bytes, 0 if it cannot."""
        # If another thread holds the lock, it is using the block.
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            if self._block is None or not self.may_spill or not self._is_unshared():
                return 0
            file = _write_to_disk(self._block)
            if file is None:
                return 0
            # Not in __del__: the collector may finalize the file before the handle.
            self._close_file = weakref.finalize(self, file.close)
            self._file, self._block = file, None
            return self.size
        finally:
            self._lock.release()

    def move_down(self) -> bool:
        """Move to a lower address if there is room for it; returns whether it moved."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._block is None or not self._block.host or not self._is_unshared():
                return False
            old = self._block
            if not self._room_below(old.address):
                return False
            new = self._pool.allocate(self.size)
            if new.address > old.address:
                return False
            ctypes.memmove(new.address, old.address, self.size)
            self._block = new
            return True
        finally:
            self._lock.release()

    def _room_below(self, address: int) -> bool:
        core = self._pool.pool.core
        core.flush()  # else the chunk freed last would be taken, not the lowest
        chunks = self._pool.free_blocks.items()
        below = any(size >= self.size and min(at) < address for size, at in chunks)
        return below and core.fits(self.size)

    def _reload(self) -> Block:
        file = self._file
        if file is None:
            raise UseAfterFree(f"{self!r} cannot be used", expected="one that was not freed")
        block = self._pool.allocate(self.size)
        file.seek(0)
        view: Any = block.view()
        done = 0
        while done < self.size:
            part = file.read(min(self.size - done, 16 << 20))
            view[done : done + len(part)] = part
            done += len(part)
        self._block, self._file = block, None
        self._close_file()
        return block

    def _is_unshared(self) -> bool:
        """Whether nothing but this handle refers to the block, not even an array over it."""
        return not self._holders and sys.getrefcount(self._block) <= 2


class Movables:
    """All handles of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = weakref.ref(pool)
        self._all: weakref.WeakSet[Movable] = weakref.WeakSet()

    def make(self, size: int, spill: bool) -> Movable:
        pool = self._pool()
        assert pool is not None  # it is the caller
        made = Movable(pool, size, spill)
        self._all.add(made)
        return made

    def spill(self, wanted: int) -> int:
        """Spill the largest ones until `wanted` bytes are free; returns the bytes freed."""
        freed = 0
        for one in sorted(self._all, key=lambda movable: -movable.size):
            if freed >= wanted:
                break
            freed += one.spill()
        return freed

    def move_down(self) -> int:
        """Move all that can, highest addresses first; returns how many moved."""
        waiting = [one for one in self._all if one._block is not None]
        waiting.sort(key=lambda one: -(one._block.address if one._block else 0))
        return sum(one.move_down() for one in waiting)


def _write_to_disk(block: Block) -> IO[bytes] | None:
    try:
        with contextlib.ExitStack() as undo:
            file = tempfile.TemporaryFile(prefix="holdfast-spill-")  # noqa: SIM115 - kept open
            undo.callback(file.close)
            file.write(block.view())
            file.flush()
            undo.pop_all()
            return file
    except OSError:
        return None
