"""The bandwidth of copies between host and device: the best of several."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.topology import numa

Copy = Callable[[], object]
_REPEATS = 5


@contextlib.contextmanager
def near_node(node: int | None, cpus: list[int]) -> Iterator[None]:
    """In the block, run on `cpus` and allocate on `node`; None changes nothing."""
    if node is None:
        yield
        return
    with numa.running_on(cpus), numa.allocating_on([node]):
        yield


def time_copies(mode: str, length: int, to: Copy, back: Copy) -> list[dict[str, Any]]:
    """GB/s of both directions; `to` and `back` copy `length` bytes and wait for it."""
    copies = {"to_device": to, "from_device": back}
    return [
        {"mode": mode, "direction": direction, "bandwidth_gb_s": _best_gb_s(copy, length)}
        for direction, copy in copies.items()
    ]


def _best_gb_s(copy: Copy, length: int) -> float:
    times = []
    for _ in range(_REPEATS + 1):  # the first one warms up
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return round(length / min(times[1:]) / 1e9, 2)
