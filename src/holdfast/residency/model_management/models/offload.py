"""Copies of weights to a device, on streams used in turn, or without streams.

A stream from `get_offload_stream` has waited for the work queued so far, so that memory freed by
this work can be overwritten; `sync_stream` makes later work wait for the copy.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from holdfast.residency.model_management.rules import current, reserve

HAVE_STREAMS = ("cuda", "xpu")  # types of devices; ROCm's is "cuda"


class OffloadStreams:
    """Up to `count` streams per device, created on first use. Thread-safe."""

    def __init__(self, count: int, module_of: Callable[[str], Any] | None = None) -> None:
        self.count = count
        self._module_of = module_of or torch.get_device_module
        self._streams: dict[torch.device, list[Any]] = {}
        self._turns: dict[torch.device, int] = {}
        self._lock = threading.Lock()

    def take(self, device: torch.device | None) -> Any | None:
        """The next stream of `device`, behind the work queued there; None without streams."""
        if self.count == 0 or device is None or device.type not in HAVE_STREAMS:
            return None
        if torch.compiler.is_compiling():
            return None
        stream = self._next(device)
        stream.wait_stream(self.current(device))
        return stream

    def current(self, device: torch.device | None) -> Any | None:
        """The current stream of `device`; None without streams."""
        if device is None or device.type not in HAVE_STREAMS:
            return None
        return self._module_of(device.type).current_stream(device)

    def _next(self, device: torch.device) -> Any:
        with self._lock:
            if device not in self._streams:
                make = self._module_of(device.type).Stream
                self._streams[device] = [make(device=device) for _ in range(self.count)]
            turn = self._turns.get(device, 0)
            self._turns[device] = (turn + 1) % self.count
            return self._streams[device][turn]


_streams_of = functools.cache(OffloadStreams)


def process_streams() -> OffloadStreams:
    """The streams of this process, by its current machine and options."""
    return _streams_of(reserve.offload_streams(current.machine(), current.options()))


def get_offload_stream(device: torch.device | None) -> Any | None:
    """The next stream for copies to `device`, for `sync_stream`; None without streams."""
    return process_streams().take(device)


def current_stream(device: torch.device | None) -> Any | None:
    """The current stream of `device`; None without streams."""
    return process_streams().current(device)


def sync_stream(device: torch.device | None, stream: Any | None) -> None:
    """Make the current stream of `device` wait for `stream`. Does not block the host."""
    now = current_stream(device)
    if stream is not None and now is not None:
        now.wait_stream(stream)


def cast_to(
    weight: torch.Tensor,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    stream: Any | None = None,
) -> torch.Tensor:
    """`weight` on `device` in `dtype` (None: as it is); itself if nothing changes and not `copy`.

    With a `stream` of `get_offload_stream` the work is queued there. Copies to the host are always
    waited for: their reader has nothing to wait on.
    """
    there = weight.device if device is None else device
    wanted = weight.dtype if dtype is None else dtype
    if weight.device == there and weight.dtype == wanted and not copy:
        return weight
    queue: Any = contextlib.nullcontext()
    if stream is not None:
        queue = torch.get_device_module(there).stream(stream)
    with queue:
        if weight.device == there:
            return weight.to(dtype=wanted, copy=copy)
        result = torch.empty_like(weight, dtype=wanted, device=there)
        return result.copy_(weight, non_blocking=non_blocking and there.type != "cpu")


def cast_to_device(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, copy: bool = False
) -> torch.Tensor:
    """`cast_to` without a stream; blocking only where the platform needs it."""
    non_blocking = current.device_supports_non_blocking(device)
    return cast_to(tensor, dtype=dtype, device=device, non_blocking=non_blocking, copy=copy)


def __getattr__(name: str) -> int:
    """NUM_STREAMS, the specification's name for how many streams a device gets."""
    if name == "NUM_STREAMS":
        return process_streams().count
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
