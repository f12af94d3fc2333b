"""Device memory for the loader: free, cached and total bytes, and emptying the cache."""

from __future__ import annotations

from typing import Protocol

import torch

from holdfast.residency.model_management.models.cache import soft_empty_cache
from holdfast.residency.model_management.rules import current


class Memory(Protocol):
    """Device memory in bytes, as the loader asks for it."""

    def free(self, device: torch.device) -> int:
        """Free memory, torch's unused cache included."""
        ...

    def cached(self, device: torch.device) -> int:
        """The part of `free` that torch's cache holds."""
        ...

    def total(self, device: torch.device) -> int:
        """All memory of the device."""
        ...

    def empty(self) -> None:
        """Free torch's unused cache."""
        ...


class DeviceMemory:
    """The memory of this machine's devices."""

    def free(self, device: torch.device) -> int:
        return current.get_free_memory(device)

    def cached(self, device: torch.device) -> int:
        return current.get_free_memory(device, torch_free_too=True)[1]

    def total(self, device: torch.device) -> int:
        return current.get_total_memory(device)

    def empty(self) -> None:
        soft_empty_cache()
