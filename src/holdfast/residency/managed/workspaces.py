"""Device memory that libraries take beside results, for convolutions.

A library that finds too little uses another algorithm, with other bits, and torch keeps that choice
for the whole process. So room is made first, as much as was seen to be used.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.managed.call_memory import Signature
from holdfast.residency.predict.dry_run import tensors_in

Blocks = tuple[int, ...]  # bytes of the blocks that have to be free: result, workspace

# What operations took on each device, by their shapes.
_taken: weakref.WeakKeyDictionary[Carrier, dict[Hashable, Blocks]]
_taken = weakref.WeakKeyDictionary()


class Workspaces:
    """What operations took on a device, and what the layers of one module need."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._by_layer: dict[str, dict[Signature | None, Blocks]] = {}
        self._before = (0, 0)  # bytes on the device, failures: before an operation not yet known

    def __bool__(self) -> bool:
        return bool(self._by_layer)

    def __contains__(self, path: str) -> bool:
        return path in self._by_layer

    def known(self, key: Hashable) -> Blocks | None:
        """What an operation takes; None if it has not run on this device yet."""
        return _taken.setdefault(self._carrier, {}).get(key)

    def guess(self, used: Sequence[torch.Tensor]) -> Blocks:
        """An upper bound for an operation that has not run yet."""
        nbytes = 16 * sum(x.numel() * x.element_size() for x in used)
        return (min(self._carrier.workspace_bytes(), nbytes),)

    def start(self) -> None:
        """Called before an operation that has not run yet."""
        self._carrier.others_peak_bytes(reset=True)  # exclude what making room took
        self._before = (self._carrier.others_bytes(), self._carrier.failures())

    def measure(self, key: Hashable, result: Any) -> Blocks | None:
        """What the operation took since `start`; None if an allocation failed."""
        before_bytes, failures = self._before
        if self._carrier.failures() > failures:
            return None
        took = self._carrier.others_peak_bytes() - before_bytes
        given = sum(x.numel() * x.element_size() for x in tensors_in(result))
        blocks = (given, took - given) if took > given else (given,)
        _taken.setdefault(self._carrier, {})[key] = blocks
        return blocks

    def note(self, path: str | None, signature: Signature | None, blocks: Blocks) -> None:
        """Record what a layer needs in calls of this kind; a result alone leaves no choice."""
        if path is not None and len(blocks) > 1:
            found = self._by_layer.setdefault(path, {})
            found[signature] = max(blocks, found.get(signature, ()), key=sum)

    def of_layer(self, path: str, signature: Signature | None) -> Blocks:
        """The most that operations of a layer need in calls of this kind."""
        return self._by_layer[path].get(signature, ())
