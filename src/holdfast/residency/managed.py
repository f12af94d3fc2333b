"""A module whose weights come and go while it runs, under a budget it never exceeds.

Covers: taking weights over and giving them back, packing, values for those who ask.
Leaves to others: deciding (plan), moving (stream), several modules under one budget (group).
Promise: results are those of the module without it, bit for bit, and its code runs once for each
call; after any exception the next call works, and `unmanage` gives the module back as it was.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from holdfast.base.errors import BadInput, InUse, OutOfMemory
from holdfast.residency import outside
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted
from holdfast.residency.packing.pack import decoder, pack
from holdfast.residency.passes import Passes
from holdfast.residency.staging import Staging
from holdfast.residency.weights import Stretch, find, owners, take_over


class Managed(Passes):
    """One module under management. Made by `manage`."""

    def take(self) -> None:
        """Bring the weights into slabs and put the hooks on. Goes on where it was broken off."""
        if self._taken:
            return
        if not self._stretches:
            self._stretches, self._own = find(self.module)
        packer = functools.partial(self._packer, Staging(self.carrier)) if self.packed else None
        if self.packed:
            decoder(self.carrier.device)  # tried and built now, not in the middle of a pass
        with torch.no_grad():
            take_over(
                self._stretches,
                pinned=self.carrier.pinned,
                node=self.group.node,
                packer=packer,
                progress=self._loading,
            )
        outside.bring(self.module, self.carrier.device)
        self._weight_of = {id(m.tensor): s.index for s in self._stretches for m in s.members}
        self._own = {p: self._own.get(p, ()) for p, _, _ in owners(self.module)}
        outside.attach(self)
        for entry in self._entries:
            if entry not in self._replaced:
                self._wrap(entry)
        self._taken = True
        self.hook_all()

    def _loading(self, done: int, total: int) -> None:
        throw_exception_if_processing_interrupted()
        if self.progress is not None:
            self.progress(done, total)

    def _packer(self, staging: Staging, raw: torch.Tensor, kind: str) -> Any:
        """Packs on the device where that is another place: it is faster by far.

        The payload is left there, and goes straight into its slab.
        """
        return pack(staging.over(raw), kind)

    def _unpacked(self, stretch: Stretch) -> torch.Tensor:
        """The raw bytes of a packed stretch, through the device where it has room."""
        try:
            memory = self.carrier.empty(stretch.raw_bytes)
            self.carrier.wait(self._send(stretch, memory, self.carrier.mark()))
        except (torch.OutOfMemoryError, OutOfMemory):
            return stretch.raw()
        return memory

    def _wrap(self, entry: str) -> None:
        original = getattr(self.module, entry)
        self._replaced[entry] = self.module.__dict__.get(entry)
        wrapped = functools.wraps(original)(functools.partial(self._enter, entry, original))
        self.module.__dict__[entry] = wrapped

    def release(self) -> None:
        """Give every weight memory of its own again and take the hooks off. Values stay.

        When this is broken off, the next call or the next `release` goes on with it.
        """
        self._leaving = True
        with self.door:  # others may have it leave the device meanwhile
            self.let_go("released")
            self._unhook()
            for stretch in self._stretches:
                stretch.restore(self._unpacked)
            self._weight_of = {}
            self.carrier.tidy()
            outside.take_back(self.module)
            self._part()

    def _part(self) -> None:
        """Nothing of the module leads here any more, and nothing here to its weights."""
        for entry, before in self._replaced.items():
            self.module.__dict__.pop(entry, None)
            if before is not None:
                self.module.__dict__[entry] = before
        self.group.leave(self)
        outside.detach(self)
        self._replaced, self._orders, self._own, self._stretches = {}, {}, {}, []
        self.when_left = None
        self._taken = False

    def abandon(self) -> None:
        """Let a module go that nobody will run again: its weights are dropped, not copied back."""
        self._leaving = True
        with self.door:
            self.let_go("the module is gone")
            self._unhook()
            self._weight_of = {}
            outside.take_back(self.module)
            self._part()

    def suspend(self) -> None:
        """Give the weights memory of their own until the next call takes them over anew."""
        if not self._taken:
            return
        if self.running:
            raise InUse(
                f"cannot change the weights of {self.name} while it runs",
                expected="a call that is over",
            )
        with self.door:
            self.let_go("its weights are being changed")
            self._unhook()
            for stretch in self._stretches:
                stretch.restore(self._unpacked)
            self._weight_of = {}
            outside.take_back(self.module)
            outside.detach(self)
            outside.mark(self)
            self._orders, self._own, self._stretches = {}, {}, []
            self._taken = False

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true value of one of its tensors, on the host; None for a tensor it does not move."""
        index = self._weight_of.get(id(tensor))
        if index is None:
            return None
        stretch = self._stretches[index]
        stretch.bring_home_if_changed()
        member = next(m for m in stretch.members if m.tensor is tensor)
        raw = (
            stretch.raw()
            if stretch.layout is None
            else self._unpacked(stretch).to("cpu", copy=True)
        )
        return member.over(raw)


def refuse_nonsense(module: object) -> None:
    """Raises BadInput for what is no module."""
    if not isinstance(module, nn.Module):
        raise BadInput(f"cannot manage a {type(module).__name__}", expected="a torch.nn.Module")
