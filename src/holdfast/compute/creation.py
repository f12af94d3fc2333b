"""Making tensors, as torch and specification 004 name it: `tensor`, `empty`, `zeros`, `randn` …

Covers: formats inferred from the data, memory from the device's pool, NumPy and DLPack in.
Leaves to others: `CustomTensor`, which is always float32 unless told.
Promise: what `tensor` and `empty` make lies in a block of the device's default pool, so it is
counted, recorded, and found when it leaks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute import functional
from holdfast.compute.device import CustomDevice, default_device
from holdfast.compute.device import device as as_device
from holdfast.compute.tensors import CustomTensor, host_array
from holdfast.memory.manager import memory_manager


def tensor(
    data: Any, dtype: Any = None, device: Any = "cpu", requires_grad: bool = False
) -> CustomTensor:
    """A tensor with a copy of `data`, in its own format; Python's numbers become float32, int64."""
    array = host_array(data, None if dtype is None else formats.dtype(dtype))
    kind = array.dtype
    if dtype is None:
        kind = formats.dtype(kind) if hasattr(data, "dtype") else _inferred(kind)
    array, place = array.astype(kind, copy=False), as_device(device)
    if place.engine.name == "numpy":
        made = empty(array.shape, kind, place)
        place.engine.write(made._array, array)
    else:
        made = CustomTensor._wrap(place.engine.upload(array), place)
    return made.requires_grad_() if requires_grad else made


def _inferred(found: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The format of Python's numbers as torch has it."""
    narrower = {formats.FLOAT64: formats.FLOAT32, formats.COMPLEX128: formats.COMPLEX64}
    return narrower.get(found, formats.dtype(found))


def empty(shape: int | Sequence[int], dtype: Any = "float32", device: Any = "cpu") -> CustomTensor:
    """A tensor whose content is whatever was there before."""
    sizes = _checked(shape)
    kind, place = formats.dtype(dtype), as_device(device)
    if place.engine.name != "numpy":
        return CustomTensor._wrap(place.engine.alloc(sizes, kind), place)
    block = memory_manager.pool("cpu").allocate(math.prod(sizes) * kind.itemsize)
    return CustomTensor._wrap(block.array("uint8").view(kind).reshape(sizes), place)


def _checked(shape: Any) -> tuple[int, ...]:
    try:
        sizes = (int(shape),) if isinstance(shape, int) else tuple(int(s) for s in shape)
    except (TypeError, ValueError):
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise BadInput(f"cannot make a tensor of shape {shape!r}", expected="sizes from 0 up")
    return sizes


def matmul(a: Any, b: Any, out: CustomTensor | None = None) -> CustomTensor:
    """The matrix product, into `out` where that is given."""
    given = next((t for t in (a, b, out) if isinstance(t, CustomTensor)), None)
    one, other = (_joining(value, given) for value in (a, b))
    return functional.matmul(one, other, out=out)


def _joining(value: Any, given: CustomTensor | None) -> CustomTensor:
    """A tensor on the device of another; bare numbers take its format too."""
    if isinstance(value, CustomTensor):
        return value
    if given is None:
        return tensor(value)
    return tensor(value, None if hasattr(value, "dtype") else given.dtype, given.device)


def zeros(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Zeros."""
    return full(_sizes(shape), 0, dtype, device)


def ones(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Ones."""
    return full(_sizes(shape), 1, dtype, device)


def full(shape: Any, value: Any, dtype: Any = None, device: Any = None) -> CustomTensor:
    """One number everywhere."""
    kind = formats.of_scalar(value) if dtype is None else formats.dtype(dtype)
    return _on(device, functional.full(list(_checked(shape)), value, dtype=kind))


def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: Any = None
) -> CustomTensor:
    """Numbers from `start` (0 when only one is given) up to, and without, `end`."""
    if end is None:
        start, end = 0, start
    kind = None if dtype is None else formats.dtype(dtype)
    return _on(device, functional.arange(start, end, step, dtype=kind))


def rand(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Random numbers from 0 up to, and without, 1."""
    return _on(device, functional.rand(list(_sizes(shape)), dtype=formats.dtype(dtype)))


def randn(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Random numbers of the normal distribution."""
    return _on(device, functional.randn(list(_sizes(shape)), dtype=formats.dtype(dtype)))


def randint(
    low: int, high: int, shape: Any, dtype: Any = "int64", device: Any = None
) -> CustomTensor:
    """Random whole numbers from `low` up to, and without, `high`."""
    made = functional.randint(low, high, list(_checked(shape)), dtype=formats.dtype(dtype))
    return _on(device, made)


def from_numpy(array: Any, device: Any = None) -> CustomTensor:
    """A tensor over an array's own memory. Raises BadInput for formats there are none for."""
    if not isinstance(array, numpy.ndarray):
        raise BadInput(
            f"from_numpy() of a {type(array).__name__}",
            expected="a NumPy array, whose memory the tensor will share",
            hint="tensor(data), which copies",
        )
    formats.dtype(array.dtype)
    place = as_device(device)
    if place.engine.name != "numpy":
        return CustomTensor._wrap(place.engine.upload(array), place)
    return CustomTensor._wrap(array, place)


def from_dlpack(source: Any) -> CustomTensor:
    """A tensor over the memory of anything that speaks DLPack, in the host's memory."""
    if not hasattr(source, "__dlpack__"):
        raise BadInput(
            f"from_dlpack() of a {type(source).__name__}",
            expected="an array of NumPy, torch, JAX or another library that speaks DLPack",
            hint="tensor(data), which copies",
        )
    return from_numpy(numpy.from_dlpack(source))


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    return _checked(given[0] if len(given) == 1 else given)


def _on(device: Any, made: CustomTensor) -> CustomTensor:
    place: CustomDevice = default_device() if device is None else as_device(device)
    return made if place == made.device else made.to(place)
