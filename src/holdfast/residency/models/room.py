"""Device memory as loading sees it: what is free, what torch only caches, giving that back.

Covers: the questions, and their answers on this machine.  Leaves to others: what follows (loaded).
"""

from __future__ import annotations

from typing import Protocol

import torch

from holdfast.residency.models.cache import soft_empty_cache
from holdfast.residency.rules import current


class Memory(Protocol):
    """What loading asks of a device. Bytes."""

    def free(self, device: torch.device) -> int:
        """What a model could take now, torch's unused cache included."""
        ...

    def cached(self, device: torch.device) -> int:
        """The part of `free` that torch's cache holds."""
        ...

    def total(self, device: torch.device) -> int:
        """What the device has."""
        ...

    def empty(self) -> None:
        """Give torch's unused cache back."""
        ...


class DeviceMemory:
    """The answers of this machine's devices."""

    def free(self, device: torch.device) -> int:
        return current.get_free_memory(device)

    def cached(self, device: torch.device) -> int:
        return current.get_free_memory(device, torch_free_too=True)[1]

    def total(self, device: torch.device) -> int:
        return current.get_total_memory(device)

    def empty(self) -> None:
        soft_empty_cache()
