"""A network of ComfyUI whose weights stream: taken into management, granted memory, given back.

Covers: one network at a time, what it may hold on the device, letting it go for good.
Leaves to others: deciding and moving (holdfast.residency), ComfyUI's side (host.patcher).
Promise: whatever others do to the network, it is whole: who moves it to the CPU, as ComfyUI does
before it loads it in its own way, gets it back as it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.residency import manage
from holdfast.residency.carriers import carrier_for
from holdfast.residency.group import Group
from holdfast.residency.packing.pack import decoder

Progress = Callable[[int, int], None]


def pays(carrier: Any) -> bool:
    """Whether packed weights are faster there: over a link, and unpacked by kernels of its own."""
    return carrier.device.type == "cuda" and decoder(carrier.device).way == "triton"


class Streaming:
    """The weights of one network, streamed to one device.

    `version` tells which patches are merged into them.
    """

    def __init__(self, version: object, carrier: Any, pack: bool) -> None:
        self.version = version
        self.pack = pack
        self._group = Group(carrier, None)
        self._managed: Any = None
        self._finalizer: Any = None
        self._reading: Any = None

    @classmethod
    def begin(
        cls,
        network: Any,
        owner: Any,
        *,
        version: object,
        device: Any,
        granted_bytes: int | None,
        pack: bool,
        progress: Progress | None = None,
    ) -> Streaming:
        """Take a network over, for as long as `owner` lives, the module around it.

        Raises whatever `progress` raises; the network is whole then.
        """
        carrier = carrier_for(device)
        made = cls(version, carrier, pack)
        made._group.grant(granted_bytes)
        packs = pack and pays(carrier)
        if packs:
            _renew_parameters(network)
        managed = manage(
            network,
            group=made._group,
            entries=("forward",),
            bring_inputs=False,  # ComfyUI does, and its options are shared with others
            pack="auto" if packs else False,
            progress=progress,
        )
        managed.progress = None  # later passes have a bar of their own
        made._managed = managed
        managed.when_left = made.end
        if managed.packed:
            made._reading = owner.register_state_dict_pre_hook(made._read)
        made._finalizer = weakref.finalize(owner, _drop, managed, made._reading)
        made._finalizer.atexit = False  # the device may be gone by then
        return made

    @property
    def active(self) -> bool:
        """Whether the network is still managed."""
        return self._managed is not None

    @property
    def held_bytes(self) -> int:
        """What its weights take on the device now."""
        managed = self._managed  # the panel asks from another thread
        return 0 if managed is None else managed.held_bytes

    @property
    def weight_bytes(self) -> int:
        """All its weights."""
        return 0 if self._managed is None else self._managed.weight_bytes

    @property
    def managed(self) -> Any:
        """Who manages it; None when it is over."""
        return self._managed

    def grant(self, granted_bytes: int | None) -> None:
        """What its weights may take on the device from the next pass on."""
        self._group.grant(granted_bytes)

    def leave(self) -> int:
        """Leave the device until the next pass; the bytes that are free now."""
        held = self.held_bytes
        if self._managed is not None:
            self._managed.let_go("ComfyUI needs the memory")
            self._group.tidy(loading=False)
        return held

    def end(self) -> None:
        """Give the network back as it was."""
        managed, self._managed = self._managed, None
        if managed is not None:
            self._finalizer.detach()
            _stop(self._reading)
            managed.release()

    def _read(self, *_: Any) -> None:
        """Somebody asks the owner for all weights, to patch or merge them: they are unpacked in
        their places.

        ComfyUI reads parameters directly after that, and packed ones have no values to be read.
        Who asks the network itself, as a Control-LoRA does while it is sampled, is given values.
        """
        if self._managed is not None and not self._managed.running:
            self.end()


def _renew_parameters(network: nn.Module) -> None:
    """New parameters over the same memory.

    Packing takes the values out of them, and others may keep the old ones: a merge of models does.
    """
    renewed: dict[int, nn.Parameter] = {}
    for part in network.modules():
        for name, old in part._parameters.items():
            if type(old) is not nn.Parameter or type(old.data) is not torch.Tensor:
                continue
            if id(old) not in renewed:
                renewed[id(old)] = nn.Parameter(old.data, old.requires_grad)
            part._parameters[name] = renewed[id(old)]


def _stop(reading: Any) -> None:
    if reading is not None:
        reading.remove()


def _drop(managed: Any, reading: Any) -> None:
    """Nobody will run the network again."""
    _stop(reading)
    managed.abandon()
