"""The torch engine: torch's own kernels, for tensors on a CUDA device.

Covers: `holdfast.tensor(…, device="cuda")`, with memory from the device's pool.
Leaves to others: computing without torch, which is what the other engines are for.
Promise: what `tensor` and `empty` make lies in the pool, results in torch's own allocator;
recordings see both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch

from holdfast.compute import dtype as formats
from holdfast.compute.ops.table import OPS
from holdfast.memory.manager import memory_manager


class Array:
    """A torch tensor with a format in our words."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return formats.dtype(str(self.tensor.dtype))

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(step * self.tensor.element_size() for step in self.tensor.stride())


class _Kernels(Mapping[str, Callable[..., Any]]):
    """Every op of the table that torch has under that name."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        base, _, overload = name.partition(".")
        try:
            return getattr(getattr(torch.ops.aten, base), overload or "default")
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (name for name in OPS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class TorchEngine:
    """Arrays are torch tensors on one CUDA device."""

    name = "torch"
    kernels = _Kernels()

    def __init__(self, index: int = 0) -> None:
        self.place = f"cuda:{index}"

    def on(self, index: int) -> TorchEngine:
        return _engine(index)

    def alloc(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Array:
        block = memory_manager.pool(self.place).allocate(math.prod(shape) * dtype.itemsize)
        return Array(block.tensor(dtype.name, shape))

    def upload(self, array: Any) -> Array:
        kind = formats.dtype(array.dtype)
        plain = numpy.array(array, copy=True, order="C")
        made = self.alloc(tuple(array.shape), kind)
        if plain.size:
            words = torch.frombuffer(bytearray(plain.tobytes()), dtype=_torch(kind))
            made.tensor.copy_(words.reshape(array.shape))
        return made

    def download(self, array: Array) -> Any:
        flat = array.tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().view(array.dtype).reshape(array.shape)

    def cast(self, array: Array, dtype: numpy.dtype[Any]) -> Array:
        return array if array.dtype == dtype else Array(array.tensor.to(_torch(dtype)))

    def write(self, array: Array, value: Array) -> None:
        array.tensor.copy_(value.tensor)

    def call(self, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def down(value: Any) -> Any:
            return _each(value, Array, lambda array: array.tensor)

        out = kernel(*map(down, args), **{k: down(v) for k, v in kwargs.items()})
        return _each(out, torch.Tensor, Array)


@functools.cache
def _engine(index: int) -> TorchEngine:
    return TorchEngine(index)


engine = _engine(0)


def _torch(kind: numpy.dtype[Any]) -> torch.dtype:
    return getattr(torch, kind.name)


def _each(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, numpy.dtype):
        return _torch(value)
    if isinstance(value, list | tuple):
        return type(value)(_each(v, kind, function) for v in value)
    return value
