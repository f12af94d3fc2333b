"""Copies a module with other tensors (on meta, or random on a device), to run it without weights.

The module, its weights and its hooks are not changed. The copy has its own modules and tensors;
everything else is shared with the original.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

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
# Indices of layers, which do not change what a layer computes.
_INDICES = ("layer_idx", "block_idx")
# diffusers' list of defaulted arguments, in the order of a set: different in every process.
_NOTES = ("_use_default_values",)
_UNSEEN = frozenset((*_INDICES, *_NOTES, *_HOOKS, "_parameters", "_buffers", "_modules"))


def shadow(module: nn.Module, make: Make) -> nn.Module:
    """Copy a module with `make(path, tensor)` for each tensor; tied tensors stay tied."""
    return _Copier(make).copy("", module)


class _Copier:
    """Copies made so far. (A recursive closure would keep all of them alive.)"""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._tensors: dict[int, torch.Tensor] = {}
        self._modules: dict[int, nn.Module] = {}

    def copy(self, prefix: str, old: nn.Module) -> nn.Module:
        """Copy a module; `prefix` is its path with a dot."""
        if id(old) in self._modules:
            return self._modules[id(old)]
        new: Any = object.__new__(type(old))
        self._modules[id(old)] = new
        fields = dict(old.__dict__)
        fields.pop("forward", None)  # a wrapper, which holds the original
        fields.pop("_compiled_call_impl", None)
        fields.pop("_output_capturing_hooks_installed", None)  # the copy has no hooks
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
            name: None if child is None else self.copy(f"{prefix}{name}.", child)
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
    """A `make` for tensors without memory; `dtype_of` gives the dtype of each."""

    def make(path: str, old: torch.Tensor) -> torch.Tensor:
        dtype = old.dtype if dtype_of is None else dtype_of(path, old)
        stride = tuple(old.stride()) if old.layout == torch.strided else None
        if stride is None:
            return torch.empty(old.shape, dtype=dtype, device="meta")
        return torch.empty_strided(tuple(old.shape), stride, dtype=dtype, device="meta")

    return make


def on_device(module: nn.Module, device: torch.device) -> Make:
    """A `make` for random weights on a device; identical submodules share one set."""
    homes = dict(_find_homes(module))
    made: dict[str, torch.Tensor] = {}

    def make(path: str, old: torch.Tensor) -> torch.Tensor:
        owner, _, name = path.rpartition(".")
        home = f"{homes.get(owner, owner)}.{name}"
        if home not in made:
            made[home] = _make_random(old, device)
        return made[home]

    return make


def _make_random(old: torch.Tensor, device: torch.device) -> torch.Tensor:
    new = torch.empty_strided(tuple(old.shape), old.stride(), dtype=old.dtype, device=device)
    if not old.dtype.is_floating_point:
        return new.zero_()  # a valid index everywhere
    if old.dtype.itemsize == 1:
        return new.copy_(torch.empty_like(new, dtype=torch.float32).normal_(0.0, 0.02))
    return new.normal_(0.0, 0.02)


def randomize_inputs(inputs: Any, device: torch.device) -> Any:
    """Inputs of the same shapes with random values on a device."""
    return tree_map_only(torch.Tensor, lambda old: _make_random(old, device), inputs)


# ---- identical submodules


def digest_modules(module: nn.Module) -> dict[str, str]:
    """A digest of each submodule by path. Submodules with the same digest compute the same."""
    found: dict[str, str] = {}

    def walk(path: str, part: nn.Module) -> str:
        inner = [
            (name, walk(f"{path}.{name}" if path else name, child))
            for name, child in part._modules.items()
            if child is not None
        ]
        text = repr((_describe(part), inner))
        found[path] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return found[path]

    walk("", module)
    return found


def find_repeated(module: nn.Module, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(path, digest) of submodules with children that occur several times in the module."""
    times = Counter(known.values())
    for path, part in module.named_modules():
        if path and times[known[path]] > 1 and next(part.children(), None) is not None:
            yield path, known[path]


def _find_homes(module: nn.Module) -> Iterator[tuple[str, str]]:
    known = digest_modules(module)
    first: dict[str, str] = {}
    moved: dict[str, str] = {}  # path -> path of the identical submodule
    for path, _ in module.named_modules():
        above, _, name = path.rpartition(".")
        if above in moved:
            moved[path] = f"{moved[above]}.{name}"
        elif path and first.setdefault(known[path], path) != path:
            moved[path] = first[known[path]]
        yield path, moved.get(path, path)


def _describe(part: nn.Module) -> tuple[Any, ...]:
    tensors = [
        (name, tuple(value.shape), tuple(value.stride()), str(value.dtype))
        for held in (part._parameters, part._buffers)
        for name, value in held.items()
        if value is not None
    ]
    return type(part).__module__, type(part).__qualname__, tensors, _plain_fields(part, deep=True)


def _plain_fields(thing: Any, deep: bool) -> list[Any]:
    """Its plain fields; for other objects, their class and (if `deep`) their plain fields."""
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


# ---- building without memory


class _Unwritten(TorchFunctionMode):
    """Skips initialization of meta tensors, which takes most of the time of building."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if getattr(func, "__module__", None) == "torch.nn.init" or name in _FILLS:
            target = args[0] if args else kwargs.get("tensor")
            if isinstance(target, torch.Tensor) and target.is_meta:
                return target
        return func(*args, **kwargs)


_FILLS = ("uniform_", "normal_", "fill_", "zero_", "trunc_normal_", "erfinv_")


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Run `build` with all tensors on meta."""
    with torch.device("meta"), _Unwritten():
        return build().eval().requires_grad_(False)
