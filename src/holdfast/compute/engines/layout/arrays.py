"""What shared kernels need beside the methods that arrays of every engine have.

An array of another engine than NumPy's has `engine`, `memory`, and `offset` and `strides` in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

SHARED: dict[str, Callable[..., Any]] = {}  # kernels by op name


def shared(*names: str) -> Callable[[Any], Any]:
    """Decorate the function that computes these ops on arrays of every engine."""

    def decorate(function: Any) -> Any:
        for name in names:
            SHARED[name] = function
        return function

    return decorate


def alloc(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """An uninitialized array of the engine of `like`."""
    make = numpy.empty if isinstance(like, numpy.ndarray) else like.engine.alloc
    return make(tuple(shape), dtype)


def zeros(like: Any, shape: Sequence[int], dtype: Any) -> Any:
    """An array of zeros of the engine of `like`."""
    if isinstance(like, numpy.ndarray):
        return numpy.zeros(shape, dtype)
    made = like.engine.alloc(tuple(shape), dtype)
    made.fill(0)
    return made


def is_contiguous(array: Any) -> bool:
    """Whether the elements are packed in C order."""
    if isinstance(array, numpy.ndarray):
        return array.flags.c_contiguous
    return array.is_contiguous


def element_strides(array: Any) -> list[int]:
    return [s // array.itemsize for s in array.strides]


def strided(array: Any, shape: Any, strides: Any, offset: int = 0) -> Any:
    """A view with this shape; strides and offset (from the start of `array`) in bytes.

    The bounds are not checked if `array` is empty.
    """
    if not isinstance(array, numpy.ndarray):
        return view_memory(array, array.memory, shape, array.offset + offset, strides)
    if not array.size:
        return numpy.lib.stride_tricks.as_strided(array, shape, strides)
    if array.flags.c_contiguous and array.dtype.isbuiltin == 1:
        return view_memory(array, array, shape, offset, strides)
    buffer, begin = memory(array)
    return view_memory(array, buffer, shape, begin + offset, strides)


def view_memory(array: Any, buffer: Any, shape: Any, begin: int, strides: Any) -> Any:
    """A view of memory from byte `begin` on; read-only if NumPy's elements share memory."""
    if not isinstance(array, numpy.ndarray):
        return array.view(array.dtype, tuple(shape), tuple(strides), begin)
    made = numpy.ndarray(shape, array.dtype, buffer, begin, strides)
    if any(n > 1 and not s for n, s in zip(shape, strides, strict=True)):
        made.flags.writeable = False
    return made


def memory(array: Any) -> tuple[Any, int]:
    """The bytes of the array that owns the memory of `array`, and the offset of `array` in them.

    If the owner is no NumPy array, or has gaps, these are the bytes that `array` itself spans.
    """
    if not isinstance(array, numpy.ndarray):
        return array.memory, array.offset
    owner: Any = array
    while isinstance(getattr(owner, "base", None), numpy.ndarray):
        owner = owner.base
    if not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        pairs = zip(array.shape, element_strides(array), strict=True)
        reach = 1 + sum((n - 1) * s for n, s in pairs)  # elements, gaps included
        owner = numpy.lib.stride_tricks.as_strided(array, (reach,), (array.itemsize,))
    return owner.ravel(order="K").view(numpy.uint8), _address(array) - _address(owner)


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]
