"""Weights on the device outside of any plan, each in memory of its own."""

from __future__ import annotations

import torch

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.managed.weight_set import WeightSet
from holdfast.residency.recording.journal import Journal
from holdfast.residency.stream.weights import Stretch

Key = tuple[int, ...]  # weights that share one piece of memory


class LooseWeights:
    """Device memory by the weights in it, with the number of our tensors there."""

    def __init__(self, carrier: Carrier, journal: Journal, weights: WeightSet) -> None:
        self._carrier, self._journal, self._weights = carrier, journal, weights
        self.memory: dict[Key, torch.Tensor] = {}
        self._holders: dict[Key, int] = {}
        self.lingering_bytes = 0  # of a ring that was dropped while a layer used it

    @property
    def held_bytes(self) -> int:
        """Their device memory. Any thread may call this."""
        return sum(m.numel() for m in list(self.memory.values())) + self.lingering_bytes

    def add(self, stretch: Stretch, memory: torch.Tensor) -> None:
        """Add a weight that was copied to memory of its own."""
        key = (stretch.index,)
        self.memory[key] = memory
        stretch.bind(memory[: stretch.raw_bytes])
        self._holders[key] = _count_holders(memory)

    def is_held(self, key: Key) -> bool:
        """Whether other code has views of these weights, so that dropping them frees nothing."""
        held = self._holders.get(key)
        return held is not None and _count_holders(self.memory[key]) > held

    def drop(self, key: Key, reason: str) -> None:
        """Evict weights from the device."""
        self._carrier.drain()
        nbytes = self.memory[key].numel()
        self.forget(key)
        self._journal.note("evict", self._weights.stretches[key[0]].name, nbytes, reason)

    def forget(self, key: Key) -> None:
        """Release weights whose layer has ended."""
        for weight in key:
            self._weights.stretches[weight].unbind()
            self._weights.stretches[weight].forget_views()
        del self.memory[key]
        self._holders.pop(key, None)

    def drop_unbound(self) -> None:
        """Drop what is not in use because Ctrl-C came between memory and its use."""
        for key in list(self.memory):
            if any(self._weights.stretches[weight].bound is None for weight in key):
                self.drop(key, "nobody used it")

    def clear(self) -> None:
        """Drop everything; the weights were unbound."""
        self.memory.clear()
        self._holders.clear()
        self.lingering_bytes = 0


def _count_holders(memory: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(memory.untyped_storage()._cdata)
