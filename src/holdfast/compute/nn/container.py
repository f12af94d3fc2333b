"""Modules that hold modules: Sequential, ModuleList, ModuleDict; and Flatten, Unflatten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor


class _ModuleSequence(Module):
    """Modules named "0", "1" and so on."""

    def _listed(self) -> list[Any]:
        return list(self._modules.values())

    def _key(self, index: int) -> str:
        names = list(self._modules)
        if not isinstance(index, int):
            raise BadInput(
                f"{type(self).__name__} has no module {index!r}",
                expected="an integer or a slice",
            )
        if not -len(names) <= index < len(names):
            raise IndexError(f"{type(self).__name__} has {len(names)} modules, none at {index}")
        return names[index]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return self._modules[self._key(index)]

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._key(index), module)

    def __delitem__(self, index: int) -> None:
        left = [m for n, m in self._modules.items() if n != self._key(index)]
        self._modules.clear()
        self._modules.update({str(place): module for place, module in enumerate(left)})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._listed())

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
        listed = self._listed()
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
        runs: list[list[Any]] = []  # first index, last index, text
        for place, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1][1] = place
            else:
                runs.append([place, place, text])
        lines = [
            f"  ({first}): {text}"
            if first == last
            else f"  ({first}-{last}): {last - first + 1} x {text}"
            for first, last, text in runs
        ]
        inner = [line.replace("\n", "\n  ") for line in lines]
        return "\n".join([f"{type(self).__name__}(", *inner, ")"]) if inner else "ModuleList()"


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[Any] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module] | Iterable[Any]) -> None:
        """Add modules from a mapping or from pairs."""
        pairs = modules.items() if isinstance(modules, Mapping) else modules
        for name, module in pairs:
            self[name] = module

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

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def keys(self) -> Iterable[str]:
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._modules.items()

    def pop(self, name: str) -> Any:
        """Remove and return a module."""
        return self._modules.pop(name)

    def clear(self) -> None:
        self._modules.clear()


class Flatten(Module):
    """Flatten the dimensions from `start_dim` to `end_dim`."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        first, last = (d + input.ndim if d < 0 else d for d in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < max(input.ndim, 1):
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions",
                "a tensor that has both dimensions, the first not behind the last",
            )
        size = 1
        for one in input.shape[first : last + 1]:
            size *= one
        return F.reshape(input, [*input.shape[:first], size, *input.shape[last + 1 :]])

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split one dimension into several; one of their sizes may be -1."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise BadInput(f"{dim!r} is no dimension", expected="an integer")
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        at, sizes = self.dim % max(input.ndim, 1), list(self.unflattened_size)
        known = 1
        for size in sizes:
            known *= size if size != -1 else 1
        if -1 in sizes and known:
            sizes[sizes.index(-1)] = input.shape[at] // known
        total = 1
        for size in sizes:
            total *= size
        if not -input.ndim <= self.dim < input.ndim or total != input.shape[at]:
            raise self.refuse(
                input,
                f"dimension {self.dim} cannot be taken apart into {self.unflattened_size}",
                "a dimension whose size is the product of those",
            )
        return F.reshape(input, [*input.shape[:at], *sizes, *input.shape[at + 1 :]])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
