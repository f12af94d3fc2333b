"""Bandwidth and latency of memory on one node, seen from the CPUs of another.

Covers: reads and writes by one thread for each CPU; the time of one dependent access.
Promise: memory and threads are really bound where the system can bind them; all is given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.topology import numa
from holdfast.topology.speed.chase import chase, chase_method

MiB = 2**20
LINE_BYTES = 64
SMALLEST_BYTES, LARGEST_BYTES = 96 * MiB, 1024 * MiB
_REPEATS = 3
_CHAIN = 2**16


def region_bytes(last_cache_bytes: int | None, free_bytes: int | None) -> int:
    """Three times the last cache, so that memory is measured and not the cache, within reason."""
    wanted = min(max(3 * (last_cache_bytes or 0), SMALLEST_BYTES), LARGEST_BYTES)
    room = free_bytes // 4 if free_bytes is not None else wanted
    return max(min(wanted, room) // MiB, 1) * MiB


class HostMemory(contextlib.AbstractContextManager["HostMemory"]):
    """A touched region on `node` (anywhere, where the system cannot bind), to be timed."""

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
        """Rate at which `cpus` together read the region: a search for a byte that is not there."""
        search = _memchr()
        return self._rate(cpus, lambda address, length: search(address, 0xFF, length))

    def write_gb_s(self, cpus: Sequence[int]) -> float:
        """Rate at which `cpus` together fill the region."""
        return self._rate(cpus, lambda address, length: ctypes.memset(address, 1, length))

    def _rate(self, cpus: Sequence[int], work: Callable[[int, int], object]) -> float:
        return max(self._once(cpus, work) for _ in range(_REPEATS))

    def _once(self, cpus: Sequence[int], work: Callable[[int, int], object]) -> float:
        """GB/s of one pass over the region, a slice for each CPU."""
        piece = self._region.length // len(cpus) // LINE_BYTES * LINE_BYTES
        gate = threading.Barrier(len(cpus) + 1)
        failures: list[BaseException] = []

        def worker(number: int, cpu: int) -> None:
            try:
                with _on([cpu]):
                    gate.wait()
                    work(self._region.address + number * piece, piece)  # lets go of the GIL
                    gate.wait()
            except threading.BrokenBarrierError:
                pass  # another one failed, or Ctrl-C
            except BaseException as exc:  # noqa: BLE001  raised again below
                failures.append(exc)
                gate.abort()

        threads = [threading.Thread(target=worker, args=pair) for pair in enumerate(cpus)]
        elapsed = math.inf
        try:
            for thread in threads:
                thread.start()
            gate.wait()
            start = time.perf_counter()
            gate.wait()
            elapsed = time.perf_counter() - start
        except threading.BrokenBarrierError:
            pass  # told below
        finally:  # the region must not go while a thread is still in it
            gate.abort()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if failures:
            raise failures[0]
        return piece * len(cpus) / elapsed / 1e9

    def latency_ns(self, cpus: Sequence[int]) -> float:
        """Time of one access that has to wait for the one before it, from the first of `cpus`."""
        half = self._region.length // 2
        with _on(cpus[:1]):
            first = self._lay_chain(half)
            times = []
            for _ in range(_REPEATS):
                # The other half pushes the chain out of the caches.
                ctypes.memset(self._region.address + half, 1, self._region.length - half)
                times.append(chase(self._region, first, _CHAIN))
        return round(min(times) / _CHAIN * 1e9, 1)

    def _lay_chain(self, length: int) -> int:
        """A ring of pointers over the first `length` bytes in random order; the first pointer."""
        words = self._region.buffer.cast("Q")
        stride = length // _CHAIN // LINE_BYTES * LINE_BYTES // 8
        order = list(range(_CHAIN))
        random.Random(1).shuffle(order)
        base = self._region.address
        for here, there in zip(order, order[1:] + order[:1], strict=True):
            words[here * stride] = base + there * stride * 8
        words.release()
        return base + order[0] * stride * 8


def latency_method() -> str:
    """How `latency_ns` times on this machine."""
    return chase_method()


def _on(cpus: Sequence[int]) -> contextlib.AbstractContextManager[None]:
    can_bind = hasattr(os, "sched_setaffinity")
    return numa.running_on(cpus) if can_bind else contextlib.nullcontext()


def _memchr() -> Callable[[int, int, int], object]:
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    library.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    library.memchr.restype = ctypes.c_void_p
    return library.memchr
