"""`CUDAMemoryPool`, a pool on one CUDA device that can take its memory in advance."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.memory.core.arenas import FIXED
from holdfast.memory.pools.manager import check_fraction
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.resources.torch_cuda import Cuda

SMALL_BYTES = 64 << 20  # of a preallocation, for blocks up to 1 MB
SPARED_BYTES = 256 << 20  # left to CUDA itself: contexts and kernels


class CUDAMemoryPool(MemoryPool):
    """Blocks on a CUDA device; `memory_fraction` of the device is allocated in advance.

    With `preallocate=False` the fraction is only a limit, and memory is taken as needed.
    """

    def __init__(
        self,
        device_id: int = 0,
        memory_fraction: float = 0.8,
        *,
        preallocate: bool = True,
        **options: Any,
    ) -> None:
        check_fraction(memory_fraction)
        super().__init__(f"cuda:{device_id}", resource=Cuda(device_id), **options)
        self.device_id = device_id
        self.memory_fraction = memory_fraction
        free, total = torch.cuda.mem_get_info(device_id)
        self.limit_bytes = int(total * memory_fraction)
        self.pool.set_limit(self.limit_bytes)
        if preallocate:
            self._preallocate(min(self.limit_bytes, free - SPARED_BYTES))

    def _preallocate(self, length: int) -> None:
        small = min(SMALL_BYTES, length // 8)
        for arena, size in ((0, small), (1, length - small)):
            whole = size // (2 << 20) * (2 << 20)
            if whole > 0:
                address = self.pool.upstream.allocate(whole)
                self.pool._fixed[address] = whole
                self.pool.core.add_segment(arena, FIXED, address, whole, whole)
