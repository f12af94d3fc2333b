"""The weights of a module by name (tied ones once), and replacing them with other tensors.

`exchange` replaces all or none, even after Ctrl-C. Ties, `requires_grad`, attributes of parameters
and the order of names stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base.errors import Unsupported


@dataclass(frozen=True, slots=True)
class ModuleSlot:
    """A parameter or buffer attribute of a module."""

    owner: nn.Module
    attribute: str


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One tensor of a module with all its names and slots, in module order."""

    tensor: Tensor
    names: tuple[str, ...]
    slots: tuple[ModuleSlot, ...]

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]


def weights_of(module: nn.Module) -> list[Weight]:
    """Parameters and persistent buffers, each once, in module order. Raises Unsupported."""
    found: dict[int, tuple[Tensor, list[str], list[ModuleSlot]]] = {}
    for name, slot, tensor in _tensors(module):
        _, names, slots = found.setdefault(id(tensor), (tensor, [], []))
        names.append(name)
        if slot not in slots:
            slots.append(slot)
    return [Weight(tensor, tuple(names), tuple(slots)) for tensor, names, slots in found.values()]


def _tensors(module: nn.Module) -> Iterator[tuple[str, ModuleSlot, Tensor]]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        _refuse(module, prefix, owner)
        temporary = owner._non_persistent_buffers_set
        for attribute, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is not None and attribute not in temporary:
                yield _full(prefix, attribute), ModuleSlot(owner, attribute), tensor


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
    """Names of non-persistent buffers; old files contain some of them all the same."""
    return {
        _full(prefix, attribute)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for attribute in owner._non_persistent_buffers_set
    }


def on_meta(module: nn.Module, weights: Sequence[Weight] = ()) -> list[str]:
    """Names of meta tensors other than `weights`: non-persistent buffers, plain attributes."""
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
    """Replace each weight by its tensor; if `then` raises afterwards, the old ones are put back."""
    new = [(weight, wrap_like(weight.tensor, tensor)) for weight, tensor in pairs]
    try:
        _put(new)
        then()
    except BaseException:
        _put([(weight, weight.tensor) for weight, _ in pairs])
        raise


def _put(pairs: Sequence[tuple[Weight, Tensor]]) -> None:
    for weight, tensor in pairs:
        for slot in weight.slots:
            # setattr, not the dictionary: recurrent layers keep their own list of weights.
            setattr(slot.owner, slot.attribute, tensor)


def wrap_like(old: Tensor, tensor: Tensor) -> Tensor:
    """`tensor`, as a parameter with the attributes of `old` if that is one."""
    if not isinstance(old, nn.Parameter):
        return tensor
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    new = nn.Parameter(tensor, requires_grad=old.requires_grad and differentiable)
    vars(new).update(vars(old))
    return new


def empty_on_meta(weight: Weight) -> Tensor:
    """A meta tensor with the same shape, strides and dtype."""
    with torch.no_grad():
        return torch.empty_like(weight.tensor, device="meta", requires_grad=False)
