"""Arrays whose memory the host cannot read, as torch tensors on the device, and back.

Such a tensor has sizes, strides and a device like any other; its address is a value that nobody
reads from. A storage keeps its array alive, and views share its memory.

An array has shape, strides and offset (in bytes), dtype, engine (with its index), memory (with its
address), and `view(dtype, shape, strides, offset)`.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from holdfast.compute.torch_device.storage import dlpack

Array = Any
_BYTES = numpy.dtype(numpy.uint8)

# All addresses. NumPy writes capsules for parts of it; nobody reads it.
_LOWEST, _HIGHEST = 4096, 1 << 62
_EVERYWHERE = dlpack.bytes_at(_LOWEST, _HIGHEST - _LOWEST, None)


def is_remote(value: Any) -> bool:
    """Whether a value is an array that is not NumPy's."""
    return hasattr(value, "memory") and hasattr(value, "engine")


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor on the array's device over its memory."""
    array = _presentable(array)
    made = dlpack.tensor_over(_stand_in(array), dlpack.ON_DEVICE, array.dtype, array.engine.index)
    kept: Any = made.untyped_storage()
    kept.held, kept.steps = array, made.stride()
    return made


def _stand_in(array: Array) -> Array:
    """An array of NumPy's with the same sizes and strides at the same address."""
    plain, _ = dlpack.EXTRA.get(array.dtype, (array.dtype, 0))
    begin = max(array.memory.address, _LOWEST) - _LOWEST + array.offset
    return numpy.ndarray(array.shape, plain, _EVERYWHERE, begin, array.strides)


def _presentable(array: Array) -> Array:
    """The array, or a copy where torch cannot describe its strides, or elements share memory."""
    steps = zip(array.strides, array.shape, strict=True)
    unfit = any(s < 0 or s % array.itemsize or (not s and n > 1) for s, n in steps)
    return copy_packed(array) if unfit else array


def view_of(tensor: torch.Tensor, held: Array) -> Array:
    """The view of its storage's array that a tensor is."""
    kind = dlpack.numpy_dtype(tensor.dtype)
    steps = tensor.stride()
    kept: Any = tensor.untyped_storage()
    same = kind is held.dtype and tensor.shape == held.shape and steps == kept.steps
    if same and not tensor.storage_offset():
        return held
    shape = tuple(tensor.shape)
    size = kind.itemsize
    strides = tuple(step * size for step in steps)
    begin = tensor.storage_offset() * size
    if not tensor.numel():
        return held.engine.alloc(shape, kind)
    end = begin + size + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if end > kept.nbytes():
        raise dlpack.storage_too_small(tensor, kept.nbytes())
    return held.view(kind, shape, strides, held.offset + begin)


def content(held: Array, nbytes: int) -> Array:
    """The first bytes of a storage, which begins where its array does."""
    return held.view(_BYTES, (nbytes,), (1,), held.offset)


def copy_packed(array: Array) -> Array:
    """A contiguous copy."""
    made = array.engine.alloc(array.shape, array.dtype)
    array.engine.write(made, array)
    return made
