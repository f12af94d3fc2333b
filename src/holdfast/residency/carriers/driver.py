"""Copies to a CUDA device by the driver's own call; torch's takes four times as much host time."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

import torch

Send = Callable[[torch.Tensor, torch.Tensor, int], bool]


@cache
def find_sender() -> Send | None:
    """A function that queues a copy (target, source, stream handle); None without a driver."""
    if torch.version.hip is not None:
        return None
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        call = library.cuMemcpyHtoDAsync_v2
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    call.restype = ctypes.c_int

    def send(target: torch.Tensor, source: torch.Tensor, stream: int) -> bool:
        return call(target.data_ptr(), source.data_ptr(), source.numel(), stream) == 0

    return send
