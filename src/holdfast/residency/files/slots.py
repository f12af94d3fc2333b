"""The weights of a module: under which names it has them, and putting others in their place.

Covers: parameters and persistent buffers with ties, what only a constructor can compute, exchange.
Leaves to others: where the new ones come from (loading), what becomes of the old (holders).
Promise: `exchange` changes all or nothing, also after Ctrl-C; ties, `requires_grad`, attributes of
parameters and the order of names stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of a module that holds a tensor."""

    owner: nn.Module
    attribute: str


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One tensor of a module: all its names and places, in the module's own order."""

    tensor: Tensor
    names: tuple[str, ...]
    slots: tuple[Slot, ...]

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def weights_of(module: nn.Module) -> list[Weight]:
    """Parameters and persistent buffers, each once, in the order of the module.

    Raises Unsupported for what has no tensors to fill: lazy parameters, states of a module's own.
    """
    found: dict[int, tuple[Tensor, list[str], list[Slot]]] = {}
    for name, slot, tensor in _tensors(module):
        _, names, slots = found.setdefault(id(tensor), (tensor, [], []))
        names.append(name)
        if slot not in slots:
            slots.append(slot)
    return [Weight(tensor, tuple(names), tuple(slots)) for tensor, names, slots in found.values()]


def _tensors(module: nn.Module) -> Iterator[tuple[str, Slot, Tensor]]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        _refuse(module, prefix, owner)
        temporary = owner._non_persistent_buffers_set
        for attribute, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is not None and attribute not in temporary:
                yield _full(prefix, attribute), Slot(owner, attribute), tensor


def _refuse(module: nn.Module, prefix: str, owner: nn.Module) -> None:
    what = None
    if type(owner).get_extra_state is not nn.Module.get_extra_state:
        what = f"{repr(prefix) if prefix else 'it'} keeps a state of its own beside its tensors"
    for attribute, tensor in owner._parameters.items():
        if isinstance(tensor, nn.UninitializedParameter):
            what = f"{_full(prefix, attribute)!r} has no shape before the first call"
    if what is not None:
        raise Unsupported(
            f"cannot exchange the weights of {type(module).__name__}: {what}",
            expected="parameters and buffers with a shape",
        )


def temporary_names(module: nn.Module) -> set[str]:
    """Names of buffers that are not saved; old files have some of them all the same."""
    return {
        _full(prefix, attribute)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for attribute in owner._non_persistent_buffers_set
    }


def on_meta(module: nn.Module, weights: Sequence[Weight] = ()) -> list[str]:
    """Tensors without numbers, but for `weights`: buffers that are not saved, plain attributes."""
    found = []
    known = {id(weight.tensor) for weight in weights}
    for prefix, owner in module.named_modules():
        names = owner._non_persistent_buffers_set
        values = {name: owner._buffers.get(name) for name in sorted(names)}
        own = {name: value for name, value in vars(owner).items() if name not in _TORCHS_OWN}
        for attribute, value in (values | own).items():
            if any(one.is_meta and id(one) not in known for one in _inside(value)):
                found.append(_full(prefix, attribute))
    return found


_TORCHS_OWN = frozenset(vars(nn.Module()))


def _inside(value: Any) -> Iterator[Tensor]:
    """The tensor, or those in a list, a tuple or a dict."""
    if isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, Tensor):
            yield one


def _full(prefix: str, attribute: str) -> str:
    return f"{prefix}.{attribute}" if prefix else attribute


# ---- exchange


def exchange(
    pairs: Sequence[tuple[Weight, Tensor]], then: Callable[[], object] = lambda: None
) -> None:
    """Put each tensor in the place of its weight; a parameter becomes a parameter again.

    `then` is called with the new ones in place; where it raises, the old ones are put back.
    """
    new = [(weight, _alike(weight.tensor, tensor)) for weight, tensor in pairs]
    try:
        _put(new)
        then()
    except BaseException:
        _put([(weight, weight.tensor) for weight, _ in pairs])
        raise


def _put(pairs: Sequence[tuple[Weight, Tensor]]) -> None:
    for weight, tensor in pairs:
        for slot in weight.slots:
            # Not straight into the dictionary: recurrent layers keep a list of their own.
            setattr(slot.owner, slot.attribute, tensor)


def _alike(old: Tensor, tensor: Tensor) -> Tensor:
    if not isinstance(old, nn.Parameter):
        return tensor
    countable = tensor.is_floating_point() or tensor.is_complex()
    new = nn.Parameter(tensor, requires_grad=old.requires_grad and countable)
    vars(new).update(vars(old))
    return new


def emptied(weight: Weight) -> Tensor:
    """The same on the meta device: shape, strides and format, no numbers."""
    with torch.no_grad():
        return torch.empty_like(weight.tensor, device="meta", requires_grad=False)
