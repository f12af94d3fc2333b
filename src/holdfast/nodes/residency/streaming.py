"""`Streaming`: one network of ComfyUI under `residency.manage`, with a memory grant.

Moving the network to the CPU, as ComfyUI does before it loads it in its own way, ends the streaming
and restores the network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.residency import manage
from holdfast.residency.carriers import carrier_for
from holdfast.residency.managed.group import Group
from holdfast.residency.packing.pack import decoder

Progress = Callable[[int, int], None]


def pays(carrier: Any) -> bool:
    """Whether packed weights are faster on that device: CUDA, with Triton kernels to unpack."""
    return carrier.device.type == "cuda" and decoder(carrier.device).way == "triton"


class Streaming:
    """The weights of one network, streamed to one device.

    `version` identifies the patches merged into them.
    """

    def __init__(self, version: object, carrier: Any, pack: bool) -> None:
        self.version = version
        self.pack = pack
        self._group = Group(carrier, None)
        self.managed: Any = None  # the manager of the network; None after `end`
        self._finalizer: Any = None
        self._hook: Any = None

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
        """Manage a network as long as `owner`, the module around it, lives.

        Raises what `progress` raises; the network is unchanged then.
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
            bring_inputs=False,  # ComfyUI moves them, and shares its options with others
            pack="auto" if packs else False,
            progress=progress,
        )
        managed.schedule.progress = None  # later passes have their own progress bar
        made.managed = managed
        managed.when_left = made.end
        if managed.packed:
            made._hook = owner.register_state_dict_pre_hook(made._end_for_state_dict)
        made._finalizer = weakref.finalize(owner, _drop, managed, made._hook)
        made._finalizer.atexit = False  # the device may be gone by then
        return made

    @property
    def active(self) -> bool:
        """Whether the network is still managed."""
        return self.managed is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of its weights on the device now."""
        managed = self.managed  # the panel calls this from another thread
        return 0 if managed is None else managed.held_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all its weights."""
        return 0 if self.managed is None else self.managed.weight_bytes

    def grant(self, granted_bytes: int | None) -> None:
        """Set the bytes for its weights on the device from the next pass on."""
        self._group.grant(granted_bytes)

    def leave(self) -> int:
        """Leave the device until the next pass; returns the bytes freed."""
        held = self.held_bytes
        if self.managed is not None:
            self.managed.let_go("ComfyUI needs the memory")
            self._group.tidy(loading=False)
        return held

    def end(self) -> None:
        """End the streaming and restore the network."""
        managed, self.managed = self.managed, None
        if managed is not None:
            self._finalizer.detach()
            if self._hook is not None:
                self._hook.remove()
            managed.release()

    def _end_for_state_dict(self, *_: Any) -> None:
        """End the streaming when the owner's state_dict is read, to patch or merge weights.

        ComfyUI reads the parameters directly after that, and packed ones hold no values. The
        state_dict of the network itself, which a Control-LoRA reads while sampling, has values.
        """
        if self.managed is not None and not self.managed.running:
            self.end()


def _renew_parameters(network: nn.Module) -> None:
    """Replace the parameters by new ones over the same memory.

    Packing empties them, and others may hold the old ones: a merge of models does.
    """
    renewed: dict[int, nn.Parameter] = {}
    for part in network.modules():
        for name, old in part._parameters.items():
            if type(old) is not nn.Parameter or type(old.data) is not torch.Tensor:
                continue
            if id(old) not in renewed:
                renewed[id(old)] = nn.Parameter(old.data, old.requires_grad)
            part._parameters[name] = renewed[id(old)]


def _drop(managed: Any, hook: Any) -> None:
    """Abandon a network that will not run again."""
    if hook is not None:
        hook.remove()
    managed.abandon()
