"""The torch engine: torch's own kernels, for tensors on a CUDA device.

`tensor` and `empty` take memory from the device's pool; results of kernels come from torch's own
allocator. Recordings see both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.table import OPS
from holdfast.memory.pools.manager import memory_manager


class Array:
    """A torch tensor whose dtype and strides read as NumPy's."""

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
        return dtypes.dtype(str(self.tensor.dtype))

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(step * self.tensor.element_size() for step in self.tensor.stride())


class _Kernels(Mapping[str, Callable[..., Any]]):
    """The ops of the table that torch has, under the same names."""

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
        kind = dtypes.dtype(array.dtype)
        plain = numpy.array(array, copy=True, order="C")
        made = self.alloc(tuple(array.shape), kind)
        if plain.size:
            host = torch.frombuffer(bytearray(plain.tobytes()), dtype=_torch_dtype(kind))
            made.tensor.copy_(host.reshape(array.shape))
        return made

    def download(self, array: Array) -> Any:
        flat = array.tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().view(array.dtype).reshape(array.shape)

    def cast(self, array: Array, dtype: numpy.dtype[Any]) -> Array:
        return array if array.dtype == dtype else Array(array.tensor.to(_torch_dtype(dtype)))

    def write(self, array: Array, value: Array) -> None:
        array.tensor.copy_(value.tensor)

    def call(self, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def unwrap(value: Any) -> Any:
            return _map_nested(value, Array, lambda array: array.tensor)

        out = kernel(*map(unwrap, args), **{k: unwrap(v) for k, v in kwargs.items()})
        return _map_nested(out, torch.Tensor, Array)


@functools.cache
def _engine(index: int) -> TorchEngine:
    return TorchEngine(index)


engine = _engine(0)


def _torch_dtype(kind: numpy.dtype[Any]) -> torch.dtype:
    return getattr(torch, kind.name)


def _map_nested(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """`function` of every `kind` in nested lists and tuples; NumPy dtypes become torch's."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, numpy.dtype):
        return _torch_dtype(value)
    if isinstance(value, list | tuple):
        return type(value)(_map_nested(v, kind, function) for v in value)
    return value
