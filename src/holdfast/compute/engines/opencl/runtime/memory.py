"""Memory for arrays of a device: allocation from its pool, eviction to the host, and return.

Evicted bytes are copied to the host first. What never fits on the device stays on the host and is
computed with there; in strict mode that raises OutOfMemory. Freed blocks are reused at once, which
is safe because a device has one in-order queue.
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
from holdfast.compute.engines.opencl.runtime.array import Memory, NotHere
from holdfast.memory.pools.manager import memory_manager
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import SEGMENT, Pool
from holdfast.memory.resources.opencl import Buffers, SharedVirtualMemory
from holdfast.memory.resources.opencl_devices import OpenCLDevice, translate_errors

SHARE = 0.9  # of the reported device memory; the driver needs the rest
_BYTES = numpy.dtype(numpy.uint8)
_PENDING = 64  # uploads in flight before finished ones are collected


class Memories:
    """The memory of all arrays of one device.

    `out_count` and `out_bytes` count evictions to the host, `back_count` and `back_bytes` returns.
    """

    def __init__(self, place: OpenCLDevice, pool: MemoryPool | None = None) -> None:
        self.place = place
        self.pool = memory_manager.pool(place.name) if pool is None else pool
        self._resource = _find_resource(self.pool.pool)
        self._there: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._uploads: collections.deque[tuple[Any, Any]] = collections.deque()
        self.launches = 0  # and allocations: the clock of `Memory.used`
        self.out_count = self.out_bytes = self.back_count = self.back_bytes = 0
        if not self.pool.pool.core.limit:
            self.pool.set_limit(int(place.total_bytes * SHARE))
        self.pool.pool.on_pressure.append(_pressure_callback(self))

    def make(self, nbytes: int) -> Memory:
        """New memory, on the device if it fits, else on the host. Raises OutOfMemory if strict."""
        made = Memory(nbytes)
        if nbytes:
            with self.place.lock:
                try:
                    self._get(made)
                except OutOfMemory as exc:
                    self._look(exc)
                    if is_strict():
                        raise
                    made.host = _alloc_on_host(nbytes)
        return made

    def _get(self, memory: Memory) -> None:
        try:
            memory.block = self.pool.allocate(memory.nbytes)
        except OutOfMemory:
            # The driver may have less memory than it reports.
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
        """Check for a lost device, which may report that it is out of memory."""
        cause: BaseException | None = exc
        while cause is not None:
            self.place.check_after(cause)
            cause = cause.__cause__

    @contextlib.contextmanager
    def on_device(self, memories: list[Memory]) -> Iterator[None]:
        """Within the block all of them are on the device. Raises NotHere if they do not fit."""
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
        with translate_errors(f"copy {memory.nbytes} bytes to {self.place.name}"):
            self._resource.write(memory.buffer, memory.start, host)
        memory.host = None
        self.back_count += 1
        self.back_bytes += memory.nbytes

    # ---- making room

    def make_room(self, wanted: int | None) -> int:
        """Evict memory, least recently used first; returns bytes freed.

        None: evict everything that no launch is being prepared with.
        """
        if not self.place.lock.acquire(blocking=False):
            return 0  # another thread is evicting
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
        """Whether there is one free piece of this size, in the pool or below its limit."""
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
        host = _alloc_on_host(memory.nbytes)
        self.read(memory, host, 0)
        self._there.discard(memory)
        memory.host = host
        memory.block = memory.buffer = None
        self.out_count += 1
        self.out_bytes += memory.nbytes

    # ---- copies

    def read(self, memory: Memory, into: Any, offset: int) -> None:
        """Copy bytes from `offset` on to the host, after all earlier work."""
        if memory.host is not None:  # another thread evicted it
            into[...] = memory.host[offset : offset + into.nbytes]
            return
        with translate_errors(f"copy {into.nbytes} bytes from {self.place.name}"):
            self._resource.read(memory.buffer, memory.start + offset, into)

    def send(self, memory: Memory, words: Any) -> None:
        """Copy bytes to the start of memory without waiting; nobody may change them afterwards."""
        with self.place.lock:
            if memory.host is not None:
                memory.host[: words.size] = words
                return
            with translate_errors(f"copy {words.nbytes} bytes to {self.place.name}"):
                event = self._resource.write(memory.buffer, memory.start, words, wait=False)
            # Releasing an event waits for its copy: keep it, and the bytes, until the copy is done.
            self._uploads.append((event, words))
            if len(self._uploads) > _PENDING:
                self._forget_finished()

    def _forget_finished(self) -> None:
        done = cl.command_execution_status.COMPLETE
        while self._uploads and self._uploads[0][0].command_execution_status == done:
            self._uploads.popleft()

    def clear_uploads(self) -> None:
        """Drop uploads after the queue was waited for."""
        self._uploads.clear()


def _alloc_on_host(nbytes: int) -> Any:
    try:
        return numpy.empty(nbytes, _BYTES)
    except MemoryError as exc:
        raise OutOfMemory(
            f"neither the device nor the host has {nbytes} bytes for an array",
            expected="an array that fits into the memory of this machine",
        ) from exc


def _find_resource(pool: Any) -> Buffers | SharedVirtualMemory:
    while not isinstance(pool, Buffers | SharedVirtualMemory):
        pool = pool.upstream
    return pool


def _pressure_callback(memories: Memories) -> Any:
    """A pool's pressure callback that does not keep the memories alive."""
    reference = weakref.ref(memories)

    def make_room(pool: Pool, size: int) -> None:
        there = reference()
        if there is not None:
            there.make_room(size)

    return make_room
