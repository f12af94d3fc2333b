"""A model as parts that go to a device or stay away, each as a whole.

Covers: splitting a module, how large parts are, which to keep on a device within a budget.
Leaves to others: moving them (residence), casting what stays away (casting).

A part is a leaf module: one whose tensors are used while it is called, and by nobody else. Some
modules hand their children's weights to a function instead of calling the children (`WHOLE`): they
are one part with all below them. Parameter lists belong to the module that has them. Tensors that
a module has beside children with tensors of their own are used at any time, so such a part is
`fixed`: on the device whenever anything of the model is.
Promise: `choose` only reads its arguments; parts keep no module alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WHOLE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)
_LISTS = (nn.ParameterList, nn.ParameterDict)


class Slot:
    """One tensor of a model and every place that has it: tied weights are one slot."""

    __slots__ = ("_owners", "key", "nbytes")

    def __init__(self, key: str, tensor: torch.Tensor) -> None:
        self.key = key
        """Its name in the model, as in a state dict; the first one, where it has several."""
        self.nbytes = tensor.numel() * tensor.element_size()
        self._owners: list[tuple[weakref.ref[nn.Module], str]] = []

    def add_owner(self, module: nn.Module, name: str) -> None:
        """Say that `module` has this tensor under `name`."""
        self._owners.append((weakref.ref(module), name))

    def get(self) -> torch.Tensor:
        """The tensor as it is now."""
        module, name = self._living()[0]
        return _table(module, name)[name]

    def put(self, data: torch.Tensor) -> None:
        """Let the tensor have `data` (on any device) from now on, in all places that have it.

        A parameter stays the object it is where torch can do that, so optimizers and others that
        know it are right afterwards.
        """
        tensor = self.get()
        if isinstance(tensor, nn.Parameter) and _can_hold(tensor, data):
            tensor.data = data
            return
        new = _parameter_like(tensor, data) if isinstance(tensor, nn.Parameter) else data
        for module, name in self._living():
            _table(module, name)[name] = new

    def _living(self) -> list[tuple[nn.Module, str]]:
        pairs = [(owner(), name) for owner, name in self._owners]
        return [(module, name) for module, name in pairs if module is not None]


def _table(module: nn.Module, name: str) -> dict[str, Any]:
    return module._parameters if name in module._parameters else module._buffers


def _can_hold(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    if tensor.device == data.device:
        return True
    plain = type(tensor.data) is torch.Tensor and type(data) is torch.Tensor
    return plain and "meta" not in (tensor.device.type, data.device.type)


def _parameter_like(tensor: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    new = nn.Parameter(data, requires_grad=tensor.requires_grad)
    for name, value in vars(tensor).items():
        setattr(new, name, value)
    return new


@dataclass(frozen=True)
class Part:
    """Tensors that go to the device together."""

    name: str
    module: weakref.ref[nn.Module]
    slots: tuple[Slot, ...]
    places: tuple[tuple[str, str, Slot], ...]
    """(path below the module, name there, slot) of all it uses, with what other parts own."""
    fixed: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors that are this part's own."""
        return sum(slot.nbytes for slot in self.slots)

    @property
    def shares(self) -> bool:
        """Whether it uses tensors that another part owns, which may be elsewhere."""
        return len({id(slot) for *_, slot in self.places}) > len(self.slots)


def split(model: nn.Module, whole: tuple[type[nn.Module], ...] = ()) -> list[Part]:
    """The parts of `model`, in its own order. `whole`: more modules not to look into."""
    return list(_Walk(WHOLE + whole).parts(model, ""))


class _Walk:
    """One way through a model, which knows what it has met."""

    def __init__(self, whole: tuple[type[nn.Module], ...]) -> None:
        self._whole = whole
        self._modules: set[int] = set()
        self._slots: dict[int, Slot] = {}  # by the id of their tensor

    def parts(self, module: nn.Module, name: str) -> Iterator[Part]:
        """The part that `module` is, if any, and those below it."""
        if id(module) in self._modules:
            return
        self._modules.add(id(module))
        one = isinstance(module, self._whole)
        places, own = self._places(module, name, one)
        if places:
            fixed = not one and _has_more_below(module)
            yield Part(name, weakref.ref(module), tuple(own), tuple(places), fixed)
        for child_name, child in () if one else module.named_children():
            if not isinstance(child, _LISTS):
                yield from self.parts(child, _join(name, child_name))

    def _places(
        self, module: nn.Module, name: str, one: bool
    ) -> tuple[list[tuple[str, str, Slot]], list[Slot]]:
        own: list[Slot] = []
        places: list[tuple[str, str, Slot]] = []
        for path, owner in _owners(module, "", one):
            for at, tensor in _tensors(owner):
                slot = self._slots.get(id(tensor))
                if slot is None:
                    slot = self._slots[id(tensor)] = Slot(_join(name, path, at), tensor)
                    own.append(slot)
                slot.add_owner(owner, at)
                places.append((path, at, slot))
        return places, own


def _owners(module: nn.Module, path: str, one: bool) -> Iterator[tuple[str, nn.Module]]:
    """The module and what belongs to it: its lists, or all below it."""
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
    """What `choose` knows of a part."""

    name: str
    size_bytes: int
    """What it takes on the device when it stays there."""
    offload_bytes: int
    """What it takes on the device while it runs, when it does not."""
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parts stay on a device."""

    kept: tuple[str, ...]
    """In the order in which to load them."""
    kept_bytes: int
    buffer_bytes: int
    """What the part that takes most takes for a moment, of those that are not kept."""


def costly_first(costs: Sequence[Cost]) -> list[Cost]:
    """The order in which parts are kept: by (offload cost, size, name), descending."""
    return sorted(costs, key=lambda cost: (cost.offload_bytes, cost.size_bytes, cost.name))[::-1]


def choose(costs: Sequence[Cost], budget_bytes: float, there: Collection[str] = ()) -> Choice:
    """Which parts to keep within `budget_bytes`, with room for those that come and go.

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
