"""Follows a chain of pointers, to measure memory latency.

An interpreter takes about as long between two accesses as a cache miss, so on x86-64 the loop is
five machine instructions. Elsewhere, or where the system forbids executable memory, it is a Python
loop whose own cost is subtracted.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable

from holdfast.topology import native
from holdfast.topology.numa import Region

# next: mov rdi, [rdi]; dec rsi; jnz next; mov rax, rdi; ret      (System V calling convention)
_X86_64 = "488b3f 48ffce 75f8 4889f8 c3"


def chase(region: Region, first: int, count: int) -> float:
    """Seconds that `count` dependent accesses take, beginning at the address `first`."""
    loop = _native_loop()
    if loop is None:
        return chase_in_python(region, first, count)
    start = time.perf_counter()
    loop(first, count)
    return time.perf_counter() - start


def chase_method() -> str:
    """The name of the method that `chase` uses on this machine."""
    return "pointer chase" if _native_loop() else "pointer chase in Python, its own cost subtracted"


def chase_in_python(region: Region, first: int, count: int) -> float:
    """The same in Python, minus the time of the loop on cached data."""
    base = region.address
    with region.buffer.cast("Q") as words:
        taken = _python_loop(words, base, first, count)
        own = words[(first - base) // 8]
        words[(first - base) // 8] = first  # a chain of one element, always in the cache
        try:
            overhead = _python_loop(words, base, first, count)
        finally:
            words[(first - base) // 8] = own
    return max(taken - overhead, 0.0)


def _python_loop(words: memoryview, base: int, address: int, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        address = words[(address - base) >> 3]
    return time.perf_counter() - start


@functools.cache
def _native_loop() -> Callable[[int, int], int] | None:
    return native.make_function(_X86_64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
