"""A thread that samples values such as resident memory while something runs.

The thread ends with `stop()`, does not keep the process alive, and does not exist after a fork.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Any

THREAD = "holdfast samples"
INTERVAL_S = 0.01
MOST = 100_000  # samples of a series; then every second one is dropped, and the pace is halved


def rss_bytes() -> int:
    """Resident memory of this process."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return _process(os.getpid()).memory_info().rss
    return int(fields[1]) * mmap.PAGESIZE


@functools.cache
def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)


class Sampler:
    """Calls every reader about every 10 ms from `start` to `stop`.

    Times are nanoseconds since `origin_ns` of `time.monotonic_ns()`. `also` is called at the same
    pace. `start` and `stop` take the first and the last sample themselves.
    """

    def __init__(
        self,
        readers: Mapping[str, Callable[[], int]],
        origin_ns: int,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self._readers = dict(readers)
        self._origin_ns = origin_ns
        self._also = also
        self._series = {name: (array("q"), array("q")) for name in readers}
        self._interval_s = INTERVAL_S
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self.sample()
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, with a last sample. A no-op the second time."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout=5)
        self.sample()

    def forget_lock(self) -> None:
        """After a fork: the sampling thread, which is gone, may have held the lock."""
        self._lock = threading.Lock()

    def series(self) -> dict[str, tuple[array[int], array[int]]]:
        """A copy of the samples so far: name -> (times_ns, values)."""
        with self._lock:
            return {name: (times[:], values[:]) for name, (times, values) in self._series.items()}

    def sample(self) -> None:
        now = monotonic_ns() - self._origin_ns
        with self._lock:
            for name, read in self._readers.items():
                times, values = self._series[name]
                times.append(now)
                values.append(read())
                if len(times) >= MOST:
                    self._series[name] = (times[::2], values[::2])
                    self._interval_s *= 2

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self.sample()
            self._also()
