"""Bandwidth and latency of memory on one node from the CPUs of another, one thread per CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.base.errors import OutOfMemory
from holdfast.base.threads import Team
from holdfast.base.units import format_bytes
from holdfast.topology import numa
from holdfast.topology.speed.chase import chase

MiB = 2**20
LINE_BYTES = 64
SMALLEST_BYTES, LARGEST_BYTES = 96 * MiB, 1024 * MiB
_REPEATS = 3
_CHAIN = 2**16


def region_bytes(last_cache_bytes: int | None, free_bytes: int | None) -> int:
    """Bytes to measure with: three times the last cache, between 96 MiB and 1 GiB.

    Takes at most a quarter of the free memory; raises OutOfMemory if that is less than twice the
    cache, because then the cache would be measured.
    """
    wanted = min(max(3 * (last_cache_bytes or 0), SMALLEST_BYTES), LARGEST_BYTES)
    least = wanted * 2 // 3
    room = free_bytes // 4 if free_bytes is not None else wanted
    if room < least:
        raise OutOfMemory(
            f"too little memory to measure: {format_bytes(free_bytes or 0)} free",
            expected=f"{format_bytes(4 * least)}, of which a quarter is used",
            hint="end other programs, or measure later",
        )
    return min(wanted, room) // MiB * MiB


class HostMemory(contextlib.AbstractContextManager["HostMemory"]):
    """A touched region on `node`, or anywhere if not `bound`."""

    def __init__(self, node: int, length: int, *, bound: bool) -> None:
        self._region = numa.Region(length, huge=True)
        try:
            if bound:
                numa.bind(self._region.address, length, [node])
            ctypes.memset(self._region.address, 1, length)
        except BaseException:
            self._region.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._region.close()

    def read_gb_s(self, cpus: Sequence[int]) -> float:
        """Bandwidth of `cpus` together reading the region: memchr for a byte that is not there."""
        search = _memchr()
        return self._rate(cpus, lambda address, length: search(address, 0xFF, length))

    def write_gb_s(self, cpus: Sequence[int]) -> float:
        """Bandwidth of `cpus` together filling the region."""
        return self._rate(cpus, lambda address, length: ctypes.memset(address, 1, length))

    def _rate(self, cpus: Sequence[int], work: Callable[[int, int], object]) -> float:
        return max(self._once(cpus, work) for _ in range(_REPEATS))

    def _once(self, cpus: Sequence[int], work: Callable[[int, int], object]) -> float:
        """GB/s of one pass over the region, a slice for each CPU."""
        piece = self._region.length // len(cpus) // LINE_BYTES * LINE_BYTES
        first = self._region.address
        elapsed = _time_together(cpus, lambda number: work(first + number * piece, piece))
        return piece * len(cpus) / elapsed / 1e9

    def latency_ns(self, cpus: Sequence[int]) -> float:
        """Time of one dependent access from the first of `cpus`."""
        half = self._region.length // 2
        with _on(cpus[:1]):
            first = self._lay_chain(half)
            times = []
            for _ in range(_REPEATS):
                # Writing the other half evicts the chain from the caches.
                ctypes.memset(self._region.address + half, 1, self._region.length - half)
                times.append(chase(self._region, first, _CHAIN))
        return round(min(times) / _CHAIN * 1e9, 1)

    def _lay_chain(self, length: int) -> int:
        """Write a ring of pointers in random order into `length` bytes; returns its start."""
        stride = length // _CHAIN // LINE_BYTES * LINE_BYTES // 8
        order = list(range(_CHAIN))
        random.Random(1).shuffle(order)
        base = self._region.address
        with self._region.buffer.cast("Q") as words:
            for here, there in zip(order, order[1:] + order[:1], strict=True):
                words[here * stride] = base + there * stride * 8
        return base + order[0] * stride * 8


def _time_together(cpus: Sequence[int], work: Callable[[int], object]) -> float:
    """Seconds from the first start to the last end of `work(number)`, in a thread on each CPU.

    Returns or raises only when all threads have ended, also after Ctrl-C, so that the memory can be
    freed. `work` must release the GIL.
    """
    gate = threading.Barrier(len(cpus))
    spans: list[tuple[float, float]] = []
    failures: list[Exception] = []

    def worker(number: int, cpu: int) -> None:
        try:
            with _on([cpu]):
                gate.wait()
                start = time.perf_counter()
                work(number)
                spans.append((start, time.perf_counter()))
        except Exception as exc:  # noqa: BLE001  raised below
            failures.append(exc)
            gate.abort()  # releases the others

    with Team() as team:
        try:
            for number, cpu in enumerate(cpus):
                team.start(worker, number, cpu)
            team.wait()
        finally:
            gate.abort()  # after Ctrl-C, threads at the gate give up; the team waits for the rest
    if failures:
        raise failures[0]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _on(cpus: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    can_bind = hasattr(os, "sched_setaffinity")
    return numa.running_on(cpus) if can_bind else contextlib.nullcontext()


def _memchr() -> Callable[[int, int, int], object]:
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    library.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    library.memchr.restype = ctypes.c_void_p
    return library.memchr
