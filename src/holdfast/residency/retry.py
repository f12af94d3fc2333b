"""What a pass may change in its module, as it was before, so that the pass can be run again.

Covers: weights and buffers that runs change in place, buffers that runs replace.
Leaves to others: when a pass has to be run again (managed), random numbers, inputs that a pass
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from holdfast.residency.weights import Stretch


class Before:
    """A module's buffers at the beginning of a pass. Costs nothing where runs change none."""

    def __init__(self, module: nn.Module, stretches: Sequence[Stretch]) -> None:
        self._stretches = stretches
        self._tables: list[dict[str, Any]] = [p._buffers for p in module.modules() if p._buffers]
        self._tensors: list[dict[str, Any]] | None = None  # None: no pass is under way

    def forget(self) -> None:
        """The pass is over, or the next is not yet begun: there is nothing to undo."""
        self._tensors = None

    def note(self) -> None:
        """A pass begins: the host gets the values of what runs are known to change."""
        self._tensors = None
        for stretch in self._stretches:
            if stretch.changed and stretch.bound is not None:
                stretch.bring_home()
            stretch.before = None
        self._tensors = [dict(table) for table in self._tables]

    def bring_back(self) -> None:
        """Undo what the pass did to its weights and buffers; those it changed leave the device."""
        if self._tensors is None:
            return
        for table, tensors in zip(self._tables, self._tensors, strict=True):
            table.update(tensors)
        for stretch in self._stretches:
            if stretch.stays or stretch.before is not None:
                stretch.revert()
