"""The weights of one managed module: taken into slabs on the host, sent to the device, restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from holdfast.base.errors import OutOfMemory
from holdfast.residency.carriers.carrier import Carrier, Mark
from holdfast.residency.managed.lora import merge_into, patched_layers
from holdfast.residency.packing.pack import decoder
from holdfast.residency.stream.ring import aligned
from holdfast.residency.stream.slabs import unwatched
from holdfast.residency.stream.staging import Staging
from holdfast.residency.stream.weights import Payloads, Stretch, find, owners, take_over


class WeightSet:
    """Weights by index, as stretches of bytes, and which of them each layer owns."""

    def __init__(self, module: nn.Module, carrier: Carrier, given: Payloads | None = None) -> None:
        self._module, self._given = module, given
        self.carrier = carrier
        self.stretches: list[Stretch] = []
        self.own: dict[str, tuple[int, ...]] = {}  # by the path of the layer
        self.index_of: dict[int, int] = {}  # by the id of a tensor
        self.escaped: set[int] = set()  # weights that results are views of

    def take(self, *, packed: bool, node: int | None, progress: Callable[[int, int], None]) -> None:
        """Move the bytes into slabs, packed if asked. Resumes after an interrupt."""
        if not self.stretches:
            self.stretches, self.own = find(self._module, self._given)
            self._given = None
        packer = None
        if packed or self.has_packed:
            decoder(self.carrier.device)  # built and tried now, not in the middle of a pass
        if packed:
            packer = Staging(self.carrier).pack
        pinned = self.carrier.pinned
        with torch.no_grad():
            take_over(self.stretches, pinned=pinned, node=node, packer=packer, progress=progress)

    def index(self) -> None:
        """Index the tensors of the module by id."""
        self.index_of = {id(m.tensor): s.index for s in self.stretches for m in s.members}
        self.own = {path: self.own.get(path, ()) for path, _, _ in owners(self._module)}

    def restore(self) -> None:
        """Give every weight its own memory again, with its current value."""
        for stretch in self.stretches:
            stretch.restore(self._unpack)
        self.index_of = {}

    def forget(self) -> None:
        """Drop all references to weights."""
        self.own, self.stretches, self.index_of = {}, [], {}

    def unbind(self) -> None:
        """Unbind all weights from the device."""
        for stretch in self.stretches:
            stretch.unbind()
            stretch.forget_views()

    # ---- sizes

    @property
    def total_bytes(self) -> int:
        """Size of all weights, unpacked."""
        return sum(stretch.raw_bytes for stretch in self.stretches)

    def bytes_of(self, weights: Sequence[int]) -> int:
        """Device memory of some of them."""
        return sum(aligned(self.stretches[w].raw_bytes) for w in weights)

    def sizes(self) -> list[int]:
        """Device memory of each of them."""
        return [aligned(stretch.raw_bytes) for stretch in self.stretches]

    def strides(self) -> dict[int, tuple[int, ...]]:
        """The strides of tensors by their id, also where they have no memory now."""
        return {id(m.tensor): m.stride for s in self.stretches for m in s.members}

    def largest_layer_bytes(self) -> int:
        """Device memory of the largest layer's weights."""
        return max(map(self.bytes_of, self.own.values()), default=0)

    @property
    def has_packed(self) -> bool:
        """Whether some are copied packed."""
        return any(stretch.layout is not None for stretch in self.stretches)

    # ---- moving

    def send(
        self, stretch: Stretch, memory: torch.Tensor, note_failure: Callable[[], None]
    ) -> Mark:
        """Copy a weight into device memory; decode it there, or on the host if room is short."""
        now = self.carrier.mark()
        target = memory[: stretch.raw_bytes]
        if stretch.layout is None:
            return self.carrier.copy([(target, stretch.host)], [now])
        try:
            payload = self.carrier.empty(stretch.payload_bytes)
        except (torch.OutOfMemoryError, OutOfMemory):
            note_failure()
            with unwatched():
                raw = stretch.raw()
            return self.carrier.copy([(target, raw)], [now])
        self.carrier.wait(self.carrier.copy([(payload, stretch.host)], [now]))
        return self.carrier.decode([(payload, stretch.layout, target)])

    def _unpack(self, stretch: Stretch) -> torch.Tensor:
        """The raw bytes of a packed weight, decoded by the device if it has room."""
        try:
            memory = self.carrier.empty(stretch.raw_bytes)
            self.carrier.wait(self.send(stretch, memory, lambda: None))
        except (torch.OutOfMemoryError, OutOfMemory):
            return stretch.raw()
        return memory

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor on the host; None for one that is not managed."""
        index = self.index_of.get(id(tensor))
        if index is None:
            return None
        stretch = self.stretches[index]
        stretch.bring_home_if_changed()
        member = next(m for m in stretch.members if m.tensor is tensor)
        packed = stretch.layout is not None
        return member.over(self._unpack(stretch).to("cpu", copy=True) if packed else stretch.raw())

    # ---- LoRA

    def merge_loras(self, stretch: Stretch) -> None:
        """Merge the LoRAs of a kept weight into its copy on the device."""
        layers = patched_layers(self._module)
        for member in stretch.members if layers else ():
            layer = layers.get(id(member.tensor))
            if layer is not None and stretch.bound is not None:
                stretch.merged |= merge_into(self._module, layer, member.over(stretch.bound))

    def is_merged(self, layer: nn.Module) -> bool:
        """Whether the device copy of a layer's weight has its LoRAs merged."""
        index = self.index_of.get(id(layer.weight))
        return index is not None and self.stretches[index].merged

    def patched(self) -> set[int | None]:
        """The weights that LoRAs change."""
        return {self.index_of.get(key) for key in patched_layers(self._module)}
