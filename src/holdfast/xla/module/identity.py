"""What identifies a module's programs, besides its weights: everything that tracing depends on.

Two modules with one identity are traced to the same program: classes, settings, helpers, functions
and tensors that are no weights are part of it. Code of unknown version (a script, a folder of
nodes) may change between runs: it has no identity, and is traced in each process.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from holdfast.residency.predict.shadow import digest_modules
from holdfast.xla.arrays import to_numpy

# Their versions are part of the name of every program, as ours is.
LIBRARIES = frozenset(("torch", "diffusers", "transformers", "jax", "torchax", "holdfast"))
# Of libraries around them, which load and save but compute nothing.
_AROUND = frozenset(("huggingface_hub", "accelerate", "peft", "safetensors", "numpy"))
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_DEPTH = 8  # tables and helpers in each other


def identity(module: nn.Module, functions: tuple[Any, ...] = ()) -> str | None:
    """A digest of everything that tracing depends on; None if it has code of unknown version.

    `functions` are further functions that are traced, such as overrides of operators.
    """
    classes = {type(part) for part in module.modules()}
    if not all(map(_is_known_function, functions)) or not all(map(_is_known_class, classes)):
        return None
    found = [digest_modules(module)[""]]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OWN:
                parts = list(_describe(value, _DEPTH))
                if None in parts:
                    return None
                found.append(f"{path} {name} {parts}" if parts else "")
    return hashlib.sha256("\n".join(filter(None, found)).encode()).hexdigest()


def _describe(value: Any, depth: int) -> Iterator[str | None]:
    """Describe what `digest_modules` leaves out of a field; yields None for unknown code."""
    if isinstance(value, torch.Tensor):
        yield _describe_tensor(value)
    elif isinstance(value, _FUNCTIONS):
        yield f"{value.__module__}.{value.__qualname__}" if _is_known_function(value) else None
    elif isinstance(value, nn.Module | type | int | float | str):
        yield type(value).__qualname__ if isinstance(value, nn.Module) else repr(value)
    elif depth and isinstance(value, functools.partial):
        yield from _describe([value.func, value.args, value.keywords], depth - 1)
    elif depth and isinstance(value, list | tuple):
        for one in value:
            yield from _describe(one, depth - 1)
    elif depth and isinstance(value, Mapping):
        yield from _fields(value, depth - 1)
    elif not hasattr(value, "__dict__"):
        yield type(value).__qualname__
    elif not _is_known_class(type(value)):
        yield None
    elif depth:
        yield from _fields(vars(value), depth - 1)


def _fields(table: Mapping[Any, Any], depth: int) -> Iterator[str | None]:
    for name, value in table.items():
        if name not in _IGNORED:
            for part in _describe(value, depth):
                yield None if part is None else f"{name}: {part}"


def _describe_tensor(tensor: torch.Tensor) -> str:
    """Shape, dtype and content: a tensor that is not a weight is a constant of the program."""
    shape = f"{tuple(tensor.shape)} {tensor.dtype}"
    if tensor.is_meta:
        return shape
    return f"{shape} {hashlib.sha256(to_numpy(tensor.detach()).tobytes()).hexdigest()}"


def _is_known_function(function: Any) -> bool:
    inner = getattr(function, "func", function)  # of a functools.partial
    return _is_known(getattr(inner, "__module__", None) or "builtins")


def _is_known_class(cls: type) -> bool:
    """It, what it inherits, and its methods, which others may replace at any time."""
    return all(
        _is_known(one.__module__)
        and all(
            _is_known(method.__module__ or "builtins")
            for method in vars(one).values()
            if isinstance(method, FunctionType)
        )
        for one in cls.__mro__
    )


def _is_known(module: str) -> bool:
    library = module.partition(".")[0]
    return library in LIBRARIES or library in _AROUND or library in sys.stdlib_module_names


# Indices of layers, and diffusers' list of default values, whose order is that of a set.
_IGNORED = frozenset(("_use_default_values", "layer_idx", "block_idx"))
_OWN = frozenset(vars(nn.Module())) | _IGNORED  # with a module's own tables
