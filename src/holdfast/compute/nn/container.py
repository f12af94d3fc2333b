"""Modules that hold modules: Sequential, ModuleList, ModuleDict; and Flatten, Unflatten."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["Flatten", "ModuleDict", "ModuleList", "Sequential", "Unflatten"]


class _ModuleSequence(Module):
    """Modules named "0", "1" and so on."""

    def _to_list(self) -> list[Any]:
        return list(self._modules.values())

    def _key(self, index: int) -> str:
        names = list(self._modules)
        if not isinstance(index, int):
            raise BadInput(
                f"{type(self).__name__} has no module {index!r}", expected="an integer or a slice"
            )
        if not -len(names) <= index < len(names):
            raise IndexError(f"{type(self).__name__} has {len(names)} modules, none at {index}")
        return names[index]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._key(index), module)

    def __delitem__(self, index: int) -> None:
        left = [m for n, m in self._modules.items() if n != self._key(index)]
        self._modules.clear()
        self._modules.update({str(place): module for place, module in enumerate(left)})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._to_list())

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Insert a module before `index`."""
        self._check_part(str(len(self)), module, Module)
        listed = self._to_list()
        listed.insert(index, module)
        self._modules.update({str(place): one for place, one in enumerate(listed)})


class Sequential(_ModuleSequence):
    """Modules in sequence, given as arguments or as one OrderedDict."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def _of(self, items: list[tuple[str, Any]]) -> Sequential:
        return type(self)(OrderedDict(items))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            if module is not None:
                input = module(input)
        return input


class ModuleList(_ModuleSequence):
    """Modules in a list."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _of(self, items: list[tuple[str, Any]]) -> ModuleList:
        return type(self)(module for _, module in items)

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __repr__(self) -> str:
        """As in torch, equal modules are printed once, with their count."""
        inner, first = [], 0
        for text, run in itertools.groupby(map(repr, self)):
            count = len(list(run))
            last = first + count - 1
            line = f"({first}-{last}): {count} x {text}" if count > 1 else f"({first}): {text}"
            inner.append("  " + line.replace("\n", "\n  "))
            first += count
        return "\n".join([f"{type(self).__name__}(", *inner, ")"]) if inner else "ModuleList()"


class ModuleDict(Module, MutableMapping[str, Any]):
    """Modules by name."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(self, modules: Mapping[str, Module] | Iterable[Any] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)


@layer
class Flatten(Layer, shown="start_dim={0.start_dim}, end_dim={0.end_dim}"):
    """Flatten the dimensions from `start_dim` to `end_dim`."""

    start_dim: int = 1
    end_dim: int = -1

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        first, last = (d + input.ndim if d < 0 else d for d in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < max(input.ndim, 1):
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions",
                "a tensor that has both dimensions, the first not behind the last",
            )
        size = math.prod(input.shape[first : last + 1])
        return F.reshape(input, [*input.shape[:first], size, *input.shape[last + 1 :]])


@layer
class Unflatten(Layer, shown="dim={0.dim}, unflattened_size={0.unflattened_size}"):
    """Split one dimension into several; one of their sizes may be -1."""

    dim: int
    unflattened_size: Any

    def build(self, kind: dict[str, Any]) -> None:
        if not isinstance(self.dim, int):
            raise BadInput(f"{self.dim!r} is no dimension", expected="an integer")

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        at, sizes = self.dim % max(input.ndim, 1), list(self.unflattened_size)
        known = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and known:
            sizes[sizes.index(-1)] = input.shape[at] // known
        fits = -input.ndim <= self.dim < input.ndim
        if not fits or math.prod(sizes) != input.shape[at]:
            raise self.refuse(
                input,
                f"dimension {self.dim} cannot be taken apart into {self.unflattened_size}",
                "a dimension whose size is the product of those",
            )
        return F.reshape(input, [*input.shape[:at], *sizes, *input.shape[at + 1 :]])
