"""A block as an array, a tensor or bytes, with no copy.

Covers: what both kinds of `Block` answer when NumPy, torch or a buffer's reader asks.
Promise: whatever is made here keeps its block alive, and the block knows that it is looked at.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.base.units import format_bytes

_CPU, _CUDA = 1, 2  # DLPack's numbers


@functools.lru_cache(maxsize=256)
def _window_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return type("Window", (ctypes.c_ubyte * size,), {"block": None})


def window(block: Any, address: int, size: int) -> Any:
    """The memory as a ctypes array that holds on to `block`."""
    made: Any = _window_type(size).from_address(address)
    made.block = block
    return made


def view(block: Any) -> memoryview:
    """The bytes."""
    return memoryview(block)


def content(block: Any) -> bytes:
    """A copy of the bytes. Without it bytes() would take a block for a number of zeros."""
    return block.view().tobytes()


def array(block: Any, dtype: Any = "uint8", shape: int | Sequence[int] | None = None) -> Any:
    """A NumPy array over the block; of all of it where no shape is given."""
    numpy = _numpy()
    kind = numpy.dtype(dtype)
    wanted, count = _shape(block, kind.itemsize, str(kind), shape)
    if not count:
        return numpy.empty(wanted, kind)
    return numpy.frombuffer(block.view(), kind, count).reshape(wanted)


def tensor(block: Any, dtype: Any = None, shape: int | Sequence[int] | None = None) -> Any:
    """A torch tensor over the block; bytes of all of it where nothing else is given."""
    torch = _torch()
    kind = dtype or torch.uint8
    if isinstance(kind, str):
        kind = getattr(torch, kind)
    wanted, count = _shape(block, kind.itemsize, str(kind), shape)
    if not count:
        return torch.empty(wanted, dtype=kind)
    if not block.host:
        return (
            torch.as_tensor(block, device="cuda")[: count * kind.itemsize].view(kind).view(wanted)
        )
    return torch.frombuffer(block.view(), dtype=kind, count=count).view(wanted)


def dlpack(block: Any, **options: Any) -> Any:
    """A DLPack capsule of the bytes."""
    if block.host:
        return array(block).__dlpack__(**options)
    return tensor(block).__dlpack__(**{k: v for k, v in options.items() if k == "stream"})


def dlpack_device(block: Any) -> tuple[int, int]:
    """Where DLPack finds it."""
    if block.host:
        return (_CPU, 0)
    return (_CUDA, tensor(block).device.index)


def array_interface(block: Any) -> dict[str, Any]:
    """What NumPy reads where an object is no buffer."""
    if not block.host:
        raise AttributeError("__array_interface__: this block is not in the memory of the host")
    return {"version": 3, "shape": (block.size,), "typestr": "|u1", "data": block.view()}


def cuda_array_interface(block: Any) -> dict[str, Any]:
    """What CuPy, Numba and torch read for memory of a CUDA device."""
    if block.host:
        raise AttributeError("__cuda_array_interface__: this block is in the memory of the host")
    data = (block.address, False)
    return {"version": 3, "shape": (block.size,), "typestr": "|u1", "data": data, "strides": None}


def describe(block: Any) -> str:
    """The block in a few words."""
    state = ", given back" if block.freed else ", pinned" if block.pinned else ""
    return f"<Block of {format_bytes(block.size)} at {block.address:#x}{state}>"


def _shape(
    block: Any, item: int, kind: str, shape: int | Sequence[int] | None
) -> tuple[tuple[int, ...], int]:
    if shape is None:
        return (block.size // item,), block.size // item
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for n in wanted:
        count *= n
    if count * item > block.size or any(n < 0 for n in wanted):
        raise BadInput(
            f"a block of {block.size} bytes is no {kind} array of shape {wanted}",
            expected="sizes from 0" if min(wanted) < 0 else f"at least {count * item} bytes",
        )
    return wanted, count


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as exc:
        raise MissingDependency(
            "arrays over a block need NumPy", expected="numpy", hint="pip install numpy"
        ) from exc
    return numpy


def _torch() -> Any:
    try:
        import torch
    except ImportError as exc:
        raise MissingDependency(
            "tensors over a block need torch",
            expected="torch",
            hint="pip install 'holdfast[torch]'",
        ) from exc
    return torch
