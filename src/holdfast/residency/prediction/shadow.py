"""A module's double with other tensors: to be run where the weights are not.

Covers: doubles on "meta" and on devices, which parts of a module are alike, building a network from
its configuration without memory.
Leaves to others: running doubles (tape, profile, rates).
Promise: the module itself, its weights and its hooks are left alone; modules of the double are its
own, everything else that is no tensor is shared with the original.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Make = Callable[[str, torch.Tensor], torch.Tensor]

_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_PLAIN = (int, float, bool, str, type(None), torch.dtype)
# Numbers that tell one layer from the next and change nothing of what it computes.
_PLACES = ("layer_idx", "block_idx")
# diffusers' list of what nobody chose, in the order of a set: another one in every process.
_NOTES = ("_use_default_values",)
_UNSEEN = frozenset((*_PLACES, *_NOTES, *_HOOKS, "_parameters", "_buffers", "_modules"))


def shadow(module: nn.Module, make: Make) -> nn.Module:
    """The double, with `make(path, tensor)` for each tensor; tied tensors stay tied."""
    return _Doubles(make).of("", module)


class _Doubles:
    """What has its double already. (Functions that call themselves would live on with it all.)"""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._tensors: dict[int, torch.Tensor] = {}
        self._modules: dict[int, nn.Module] = {}

    def of(self, prefix: str, old: nn.Module) -> nn.Module:
        """The double of a module; `prefix` is its path with a dot."""
        if id(old) in self._modules:
            return self._modules[id(old)]
        new: Any = object.__new__(type(old))
        self._modules[id(old)] = new
        fields = dict(old.__dict__)
        fields.pop("forward", None)  # somebody's wrapper, which holds the original
        fields.pop("_compiled_call_impl", None)
        fields.pop("_output_capturing_hooks_installed", None)  # of transformers; hooks are gone
        fields.update((name, OrderedDict()) for name in _HOOKS if name in fields)
        for name, value in fields.items():
            if isinstance(value, torch.Tensor):
                fields[name] = self._tensor(prefix + name, value)
        for kind in ("_parameters", "_buffers"):
            fields[kind] = {
                name: None if value is None else self._tensor(prefix + name, value)
                for name, value in fields[kind].items()
            }
        fields["_modules"] = {
            name: None if child is None else self.of(f"{prefix}{name}.", child)
            for name, child in old._modules.items()
        }
        if type(old).__name__ == "OptimizedModule":
            original: Any = fields["_modules"]["_orig_mod"]
            fields["forward"] = original.__call__
        new.__dict__.update(fields)
        return new

    def _tensor(self, path: str, old: torch.Tensor) -> torch.Tensor:
        if id(old) not in self._tensors:
            new = self._make(path, old)
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=False)
            self._tensors[id(old)] = new
        return self._tensors[id(old)]


def on_meta(dtype_of: Callable[[str, torch.Tensor], torch.dtype] | None = None) -> Make:
    """Tensors without memory; `dtype_of` says in which format each is."""

    def make(path: str, old: torch.Tensor) -> torch.Tensor:
        dtype = old.dtype if dtype_of is None else dtype_of(path, old)
        stride = tuple(old.stride()) if old.layout == torch.strided else None
        if stride is None:
            return torch.empty(old.shape, dtype=dtype, device="meta")
        return torch.empty_strided(tuple(old.shape), stride, dtype=dtype, device="meta")

    return make


def on_device(module: nn.Module, device: torch.device) -> Make:
    """Random weights on a device, once for all parts of a module that are alike."""
    homes = dict(_homes(module))
    made: dict[str, torch.Tensor] = {}

    def make(path: str, old: torch.Tensor) -> torch.Tensor:
        owner, _, name = path.rpartition(".")
        home = f"{homes.get(owner, owner)}.{name}"
        if home not in made:
            made[home] = _random(old, device)
        return made[home]

    return make


def _random(old: torch.Tensor, device: torch.device) -> torch.Tensor:
    new = torch.empty_strided(tuple(old.shape), old.stride(), dtype=old.dtype, device=device)
    if not old.dtype.is_floating_point:
        return new.zero_()  # a valid index into anything
    if old.dtype.itemsize == 1:
        return new.copy_(torch.empty_like(new, dtype=torch.float32).normal_(0.0, 0.02))
    return new.normal_(0.0, 0.02)


def random_inputs(inputs: Any, device: torch.device) -> Any:
    """The same inputs with values on a device."""
    if isinstance(inputs, torch.Tensor):
        return _random(inputs, device)
    if isinstance(inputs, dict):
        return {name: random_inputs(value, device) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(random_inputs(value, device) for value in inputs)
    return inputs


# ---- what is alike


def digests(module: nn.Module) -> dict[str, str]:
    """For each part by path: what it is. Parts with the same digest compute the same way."""
    found: dict[str, str] = {}

    def walk(path: str, part: nn.Module) -> str:
        inner = [
            (name, walk(f"{path}.{name}" if path else name, child))
            for name, child in part._modules.items()
            if child is not None
        ]
        text = repr((_described(part), inner))
        found[path] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return found[path]

    walk("", module)
    return found


def repeated(module: nn.Module, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(path, digest) of parts with inner parts that have their like in the module."""
    times = Counter(known.values())
    for path, part in module.named_modules():
        if path and times[known[path]] > 1 and next(part.children(), None) is not None:
            yield path, known[path]


def _homes(module: nn.Module) -> Iterator[tuple[str, str]]:
    """(path, path of the first part that it is like)."""
    known = digests(module)
    first: dict[str, str] = {}
    moved: dict[str, str] = {}  # prefix of a part -> that of its like
    for path, _ in module.named_modules():
        above, _, name = path.rpartition(".")
        if above in moved:
            moved[path] = f"{moved[above]}.{name}"
        elif path and first.setdefault(known[path], path) != path:
            moved[path] = first[known[path]]
        yield path, moved.get(path, path)


def _described(part: nn.Module) -> tuple[Any, ...]:
    tensors = [
        (name, tuple(value.shape), tuple(value.stride()), str(value.dtype))
        for held in (part._parameters, part._buffers)
        for name, value in held.items()
        if value is not None
    ]
    return type(part).__module__, type(part).__qualname__, tensors, _plain_fields(part, deep=True)


def _plain_fields(thing: Any, deep: bool) -> list[Any]:
    """Its fields that are numbers and words; of other objects in it, their class and their own."""
    fields: list[Any] = []
    for name, value in vars(thing).items():
        if name in _UNSEEN:
            continue
        if isinstance(value, _PLAIN) or (
            isinstance(value, tuple | list) and all(isinstance(v, _PLAIN) for v in value)
        ):
            fields.append((name, repr(value)))
        elif deep and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module):
            fields.append((name, type(value).__qualname__, _plain_fields(value, deep=False)))
    return fields


# ---- without memory from the start


class _Unwritten(TorchFunctionMode):
    """New tensors are on meta, and nobody fills them: that takes most of the time of building."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if getattr(func, "__module__", None) == "torch.nn.init" or name in _FILLS:
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, torch.Tensor) and target.is_meta:
                return target
        return func(*args, **kwargs)


_FILLS = ("uniform_", "normal_", "fill_", "zero_", "trunc_normal_", "erfinv_")


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """What `build` makes, on meta."""
    with torch.device("meta"), _Unwritten():
        return build().eval().requires_grad_(False)
