"""Memory for arrays of a device: from its pool, making room, coming back.

Covers: getting memory, moving what was not used for longest to the host, bringing it back.
Leaves to others: the pool and its limits (holdfast.memory), views (`array`).
Promise: numbers are never lost: what leaves the device is on the host first. What fits nowhere on
the device stays on the host, and is computed with there; where that is refused, `OutOfMemory`.

Blocks that are freed are handed out again at once. That is right because a device has one queue,
which works in order: who gets a block comes behind who had it.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pyopencl as cl

from holdfast.base.errors import OutOfMemory
from holdfast.compute.engine import is_strict
from holdfast.compute.engines.opencl.array import Memory, NotHere
from holdfast.memory.manager import memory_manager
from holdfast.memory.memory_pool import MemoryPool
from holdfast.memory.opencl import Place
from holdfast.memory.opencl_resources import Buffers, Shared
from holdfast.memory.pool import SEGMENT, Pool
from holdfast.memory.svm.opencl_runtime import said

SHARE = 0.9  # of what the device says it has: the rest is the driver's
_BYTES = numpy.dtype(numpy.uint8)
_PENDING = 64  # uploads that may be on their way before finished ones are looked for


class Memories:
    """All memory of one device that arrays look at.

    `out_count` and `out_bytes` say how often and how much had to leave, `back_count` and
    `back_bytes` what came back.
    """

    def __init__(self, place: Place, pool: MemoryPool | None = None) -> None:
        self.place = place
        self.pool = memory_manager.pool(place.name) if pool is None else pool
        self._resource = _resource(self.pool.pool)
        self._there: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._uploads: collections.deque[tuple[Any, Any]] = collections.deque()
        self.launches = 0  # and arrivals: the clock of `used`
        self.out_count = self.out_bytes = self.back_count = self.back_bytes = 0
        if not self.pool.pool.core.limit:
            self.pool.set_limit(int(place.total_bytes * SHARE))
        self.pool.pool.on_pressure.append(_weakly(self))

    def make(self, nbytes: int) -> Memory:
        """New memory, on the device if that can be. Raises OutOfMemory where that is a must."""
        made = Memory(nbytes)
        if nbytes:
            with self.place.lock:
                try:
                    self._get(made)
                except OutOfMemory as exc:
                    self._look(exc)
                    if is_strict():
                        raise
                    made.host = _on_host(nbytes)
        return made

    def _get(self, memory: Memory) -> None:
        try:
            memory.block = self.pool.allocate(memory.nbytes)
        except OutOfMemory:
            # The driver may have less than it says.
            if memory.nbytes > self.pool.pool.core.limit or not self.make_room(None):
                raise
            self.pool.empty_cache()
            memory.block = self.pool.allocate(memory.nbytes)
        memory.address = memory.block.address
        memory.buffer, memory.start = self._resource.locate(memory.address)
        self.launches += 1
        memory.used = self.launches
        self._there.add(memory)

    def _look(self, exc: OutOfMemory) -> None:
        """A device that is lost may say that it has no memory."""
        cause: BaseException | None = exc
        while cause is not None:
            self.place.look(cause)
            cause = cause.__cause__

    @contextlib.contextmanager
    def used(self, memories: list[Memory]) -> Iterator[None]:
        """Within the block all of them are on the device. Raises NotHere where they cannot be."""
        self.launches += 1
        for memory in memories:
            memory.busy += 1
        try:
            for memory in memories:
                memory.used = self.launches
                if memory.host is not None:
                    self._bring(memory)
            yield
        finally:
            for memory in memories:
                memory.busy -= 1

    def _bring(self, memory: Memory) -> None:
        host = memory.host
        try:
            self._get(memory)
        except OutOfMemory as exc:
            if is_strict():
                raise
            raise NotHere(str(exc)) from exc
        with said(f"copy {memory.nbytes} bytes to {self.place.name}"):
            self._resource.write(memory.buffer, memory.start, host)
        memory.host = None
        self.back_count += 1
        self.back_bytes += memory.nbytes

    # ---- making room

    def make_room(self, wanted: int | None) -> int:
        """Move memory to the host, what was not used for longest first; returns bytes freed.

        None: all that no launch is being put together with.
        """
        if not self.place.lock.acquire(blocking=False):
            return 0  # another thread is at it
        try:
            freed = 0
            for memory in self._idle() if self.place.usable else []:
                if wanted is not None and freed >= wanted and self._has_room(wanted):
                    break
                self._put_aside(memory)
                freed += memory.nbytes
            return freed
        finally:
            self.place.lock.release()

    def _has_room(self, wanted: int) -> bool:
        """Whether there is room in one piece, in the pool or below its limit."""
        core = self.pool.pool.core
        core.flush()
        if core.fits(wanted):
            return True
        self.pool.empty_cache()
        segment = -(-wanted // SEGMENT) * SEGMENT
        return not core.limit or core.limit - self.pool.pool.reserved_bytes >= segment

    def _idle(self) -> list[Memory]:
        found = [m for m in self._there if not m.busy and m.block is not None]
        return sorted(found, key=lambda m: m.used)

    def _put_aside(self, memory: Memory) -> None:
        host = _on_host(memory.nbytes)
        self.read(memory, host, 0)
        self._there.discard(memory)
        memory.host = host
        memory.block = memory.buffer = None
        self.out_count += 1
        self.out_bytes += memory.nbytes

    # ---- copies

    def read(self, memory: Memory, into: Any, offset: int) -> None:
        """Copy bytes from `offset` on to the host, when all work before is done."""
        if memory.host is not None:  # another thread made room
            into[...] = memory.host[offset : offset + into.nbytes]
            return
        with said(f"copy {into.nbytes} bytes from {self.place.name}"):
            self._resource.read(memory.buffer, memory.start + offset, into)

    def send(self, memory: Memory, words: Any) -> None:
        """Copy bytes, which nobody changes any more, to the start of memory, without waiting."""
        with self.place.lock:
            if memory.host is not None:
                memory.host[: words.size] = words
                return
            with said(f"copy {words.nbytes} bytes to {self.place.name}"):
                event = self._resource.write(memory.buffer, memory.start, words, wait=False)
            # An event that goes away waits for its copy: kept until it is done, with the bytes.
            self._uploads.append((event, words))
            if len(self._uploads) > _PENDING:
                self._forget_finished()

    def _forget_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._uploads and self._uploads[0][0].command_execution_status == done:
            self._uploads.popleft()

    def all_sent(self) -> None:
        """The queue was waited for: bytes on their way have arrived."""
        self._uploads.clear()


def _on_host(nbytes: int) -> Any:
    try:
        return numpy.empty(nbytes, _BYTES)
    except MemoryError as exc:
        raise OutOfMemory(
            f"neither the device nor the host has {nbytes} bytes for an array",
            expected="an array that fits into the memory of this machine",
        ) from exc


def _resource(pool: Any) -> Buffers | Shared:
    while not isinstance(pool, Buffers | Shared):
        pool = pool.upstream
    return pool


def _weakly(memories: Memories) -> Any:
    """What a pool calls under pressure; it does not keep the memories alive."""
    reference = weakref.ref(memories)

    def make_room(pool: Pool, size: int) -> None:
        there = reference()
        if there is not None:
            there.make_room(size)

    return make_room
