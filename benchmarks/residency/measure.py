"""Time, memory and the link, measured the same way for every system.

Covers: marks on the device's own clock, peaks by torch and by the driver, the link, a ballast.
Leaves to others: what is measured (cells.py).
Promise: the driver is never asked while steps are being timed.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

# Kernels that load when first used and the workspaces of libraries; no system counts these.
SLACK_BYTES = 256 << 20
LINK_BYTES = 256 << 20
SAMPLE_S = 0.005


def synchronize(device: torch.device) -> None:
    """Wait for everything that was given to `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _mark(device: torch.device) -> Any:
    """A moment in the order of the device's work."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_ms(first: Any, second: Any) -> float:
    if isinstance(first, float):
        return (second - first) * 1000
    return first.elapsed_time(second)


def step_times_ms(
    step: Callable[[], Any], count: int, device: torch.device
) -> tuple[list[float], Any]:
    """The times of `count` steps in a row, and what the last one gave.

    One step more is run and left out: it would profit from weights that were fetched ahead while
    nothing ran. The host waits for the device once, at the end.
    """
    synchronize(device)
    marks, result = [], None
    for _ in range(count + 1):
        result = step()
        marks.append(_mark(device))
    synchronize(device)
    return [_between_ms(a, b) for a, b in pairwise(marks)], result


def once_ms(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """The time of one call, with the device idle before and after."""
    synchronize(device)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    return (time.perf_counter() - start) * 1000, result


class Link:
    """How fast pinned memory reaches the device; on the CPU, how fast memory is copied."""

    def __init__(self, device: torch.device, size_bytes: int = LINK_BYTES) -> None:
        self._device = device
        self._source = torch.ones(size_bytes, dtype=torch.uint8)
        if device.type == "cuda":
            self._source = self._source.pin_memory()

    def measure_gb_s(self, repeats: int = 8) -> float:
        """GB/s (10^9 bytes): the median of several copies."""
        target = torch.empty_like(self._source, device=self._device)
        target.copy_(self._source, non_blocking=True)
        times, _ = step_times_ms(
            lambda: target.copy_(self._source, non_blocking=True), repeats, self._device
        )
        return self._source.numel() / statistics.median(times) / 1e6


def tidy(device: torch.device) -> None:
    """Give back what is kept for reuse, on the device and in pinned memory."""
    gc.collect()
    if device.type != "cuda":
        return
    synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0, device)  # somebody may have set a limit
    for name in ("_accelerator_emptyHostCache", "_host_emptyCache"):  # by torch's version
        if hasattr(torch._C, name):
            getattr(torch._C, name)()
            return


@contextmanager
def ballast(device: torch.device, leave_bytes: int | None) -> Iterator[int]:
    """Take all device memory but `leave_bytes` and a little slack; gives the bytes taken.

    Every system sees it, whichever way it asks for free memory. None takes nothing.
    """
    if device.type != "cuda" or leave_bytes is None:
        yield 0
        return
    tidy(device)  # what torch keeps for reuse would come on top of what is left
    free, _ = torch.cuda.mem_get_info(device)
    size = max(1, free - leave_bytes - SLACK_BYTES)
    # From the driver: to torch, and to those who ask torch, it is none of this process's tensors.
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64()
    code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if code != 0:
        raise MemoryError(f"cannot take {size} bytes as ballast: CUDA error {code}")
    try:
        yield size
    finally:
        synchronize(device)
        driver.cuMemFree_v2(address)


def context_bytes(device: torch.device) -> int:
    """What the driver counts beside torch's memory; nobody else may be on the device."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


class Peaks:
    """The most device memory since it was made, less what was there before.

    `torch_bytes`: allocated by torch. `driver_bytes`: by the driver's count of the whole device,
    sampled by a thread while `watching`; None where the driver cannot be asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handle, self._nvml = _driver(device)
        self.driver_bytes: int | None = None
        self._before = self._used() if self._nvml else 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._allocated = torch.cuda.memory_allocated(device)

    @property
    def torch_bytes(self) -> int | None:
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device) - self._allocated

    def _used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask the driver every few milliseconds; not for stretches that are timed."""
        if not self._nvml:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._sample, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _sample(self, stop: threading.Event) -> None:
        while True:
            self.driver_bytes = max(self.driver_bytes or 0, self._used() - self._before)
            if stop.wait(SAMPLE_S):
                return


def _driver(device: torch.device) -> tuple[Any, Any]:
    """NVML's handle of `device` and NVML itself; None and None where there is none."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        return pynvml.nvmlDeviceGetHandleByUUID(uuid), pynvml
    except pynvml.NVMLError:
        return None, None  # the torch figures remain
