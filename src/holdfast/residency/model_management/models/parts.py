"""Splits a model into parts that move as a whole, and chooses which to keep within a budget.

A part is a leaf module, whose tensors are used only while it is called. Modules that pass their
children's weights to a function instead of calling the children (`WHOLE`) are one part with
everything below. Parameter lists belong to their module. Tensors beside children that have tensors
themselves may be used at any time: such a part is `fixed`, on the device whenever any other is.
Parts keep no module alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.residency.files.slots import wrap_like

WHOLE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)
_LISTS = (nn.ParameterList, nn.ParameterDict)


class TensorSlot:
    """One tensor of a model with all modules that own it; tied weights are one slot."""

    __slots__ = ("_owners", "key", "nbytes")

    def __init__(self, key: str, tensor: torch.Tensor) -> None:
        self.key = key
        """Its (first) name in the model, as in a state dict."""
        self.nbytes = tensor.numel() * tensor.element_size()
        self._owners: list[tuple[weakref.ref[nn.Module], str]] = []

    def add_owner(self, module: nn.Module, name: str) -> None:
        """Record that `module` has this tensor under `name`."""
        self._owners.append((weakref.ref(module), name))

    def get(self) -> torch.Tensor:
        """The current tensor."""
        module, name = self._living()[0]
        return table_of(module, name)[name]

    def put(self, data: torch.Tensor) -> None:
        """Replace the data in all owners; a parameter stays the object it is where torch can."""
        tensor = self.get()
        if isinstance(tensor, nn.Parameter) and _can_hold(tensor, data):
            tensor.data = data
            return
        new = wrap_like(tensor, data)
        for module, name in self._living():
            table_of(module, name)[name] = new

    def _living(self) -> list[tuple[nn.Module, str]]:
        pairs = [(owner(), name) for owner, name in self._owners]
        return [(module, name) for module, name in pairs if module is not None]


def table_of(module: nn.Module, name: str) -> dict[str, Any]:
    """The parameters or the buffers of a module, whichever has that name."""
    return module._parameters if name in module._parameters else module._buffers


def _can_hold(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    if tensor.device == data.device:
        return True
    plain = type(tensor.data) is torch.Tensor and type(data) is torch.Tensor
    return plain and "meta" not in (tensor.device.type, data.device.type)


@dataclass(frozen=True)
class ModelPart:
    """Tensors that move to the device together."""

    name: str
    module: weakref.ref[nn.Module]
    slots: tuple[TensorSlot, ...]
    places: tuple[tuple[str, str, TensorSlot], ...]
    """(path below the module, name, slot) of all tensors it uses, also those of other parts."""
    fixed: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of this part's own tensors."""
        return sum(slot.nbytes for slot in self.slots)

    @property
    def shares(self) -> bool:
        """Whether it uses tensors of another part, which may be on another device."""
        return len({id(slot) for *_, slot in self.places}) > len(self.slots)


def split(model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> list[ModelPart]:
    """The parts of `model` in module order. `whole`: further classes not to split."""
    return list(_Walk(WHOLE + whole).parts(model, ""))


class _Walk:
    """One traversal of a model, which remembers what it has seen."""

    def __init__(self, whole: tuple[type[nn.Module], ...]) -> None:
        self._whole = whole
        self._modules: set[int] = set()
        self._slots: dict[int, TensorSlot] = {}  # by the id of their tensor

    def parts(self, module: nn.Module, name: str) -> Iterator[ModelPart]:
        """The part of `module`, if it is one, and the parts below it."""
        if id(module) in self._modules:
            return
        self._modules.add(id(module))
        one = isinstance(module, self._whole)
        places, own = self._places(module, name, one)
        if places:
            fixed = not one and _has_more_below(module)
            yield ModelPart(name, weakref.ref(module), tuple(own), tuple(places), fixed)
        for child_name, child in () if one else module.named_children():
            if not isinstance(child, _LISTS):
                yield from self.parts(child, _join(name, child_name))

    def _places(
        self, module: nn.Module, name: str, one: bool
    ) -> tuple[list[tuple[str, str, TensorSlot]], list[TensorSlot]]:
        own: list[TensorSlot] = []
        places: list[tuple[str, str, TensorSlot]] = []
        for path, owner in _owners(module, "", one):
            for at, tensor in _tensors(owner):
                slot = self._slots.get(id(tensor))
                if slot is None:
                    slot = self._slots[id(tensor)] = TensorSlot(_join(name, path, at), tensor)
                    own.append(slot)
                slot.add_owner(owner, at)
                places.append((path, at, slot))
        return places, own


def _owners(module: nn.Module, path: str, one: bool) -> Iterator[tuple[str, nn.Module]]:
    """The module and its parameter lists, or everything below it."""
    yield path, module
    for name, child in module.named_children():
        if one or isinstance(child, _LISTS):
            yield from _owners(child, _join(path, name), one)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for table in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in table.items() if tensor is not None)


def _has_more_below(module: nn.Module) -> bool:
    children = [child for child in module.children() if not isinstance(child, _LISTS)]
    below = (one for child in children for one in child.modules())
    return any(next(_tensors(one), None) is not None for one in below)


def _join(*names: str) -> str:
    return ".".join(name for name in names if name)


@dataclass(frozen=True, slots=True)
class Cost:
    """The sizes of a part that `choose` decides by."""

    name: str
    size_bytes: int
    """Bytes on the device if it stays there."""
    offload_bytes: int
    """Bytes on the device during its call if it does not stay."""
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts stay on a device."""

    kept: tuple[str, ...]
    """In loading order."""
    kept_bytes: int
    buffer_bytes: int
    """The largest temporary size of the parts that are not kept."""


def costly_first(costs: Sequence[Cost]) -> list[Cost]:
    """The order in which parts are kept: by (offload cost, size, name), descending."""
    return sorted(costs, key=lambda cost: (cost.offload_bytes, cost.size_bytes, cost.name))[::-1]


def choose(costs: Sequence[Cost], budget_bytes: float, there: Collection[str] = ()) -> Choice:
    """Which parts to keep within `budget_bytes`, with room for the largest part that is not kept.

    The costliest to bring again are kept. Fixed parts, and those that are `there` already, are
    kept whatever the budget is.
    """
    if sum(cost.size_bytes for cost in costs) <= budget_bytes:
        return _choice(costs, {cost.name for cost in costs})
    kept = {cost.name for cost in costs if cost.fixed or cost.name in there}
    used = sum(cost.size_bytes for cost in costs if cost.name in kept)
    rest = [cost for cost in costly_first(costs) if cost.name not in kept]
    buffer = 0
    for cost, after in zip(rest, [*rest, None][1:], strict=True):
        needed = max(buffer, after.offload_bytes if after else 0)
        if used + cost.size_bytes + needed <= budget_bytes:
            used += cost.size_bytes
            kept.add(cost.name)
        else:
            buffer = max(buffer, cost.offload_bytes)
    return _choice(costs, kept)


def _choice(costs: Sequence[Cost], kept: set[str]) -> Choice:
    order = [cost for cost in costly_first(costs) if cost.name in kept]
    order.sort(key=lambda cost: not cost.fixed)
    away = [cost.offload_bytes for cost in costs if cost.name not in kept]
    size_bytes = sum(cost.size_bytes for cost in order)
    return Choice(tuple(cost.name for cost in order), size_bytes, max(away, default=0))
