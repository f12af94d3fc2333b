"""Functions that create tensors, as torch and specification 004 name them.

What `tensor` and `empty` create lies in a block of the device's default pool, so it is counted,
recorded, and found when it leaks. Unlike `CustomTensor(data)`, dtypes are inferred from the
data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import CustomDevice, default_device
from holdfast.compute.tensors.device import device as as_device
from holdfast.compute.tensors.host_data import host_array
from holdfast.memory.pools.manager import memory_manager

# torch's dtypes of Python scalars, where NumPy's are wider
_NARROWER = {dtypes.FLOAT64: dtypes.FLOAT32, dtypes.COMPLEX128: dtypes.COMPLEX64}


def tensor(
    data: Any, dtype: Any = None, device: Any = "cpu", requires_grad: bool = False
) -> CustomTensor:
    """Copy `data` in its own dtype; Python floats become float32, ints int64."""
    array = host_array(data, None if dtype is None else dtypes.dtype(dtype))
    kind = array.dtype
    if dtype is None:
        kind = dtypes.dtype(kind) if hasattr(data, "dtype") else _NARROWER.get(kind, kind)
    array, place = array.astype(kind, copy=False), as_device(device)
    if place.engine.name == "numpy":
        made = empty(array.shape, kind, place)
        place.engine.write(made._array, array)
    else:
        made = CustomTensor._wrap(place.engine.upload(array), place)
    return made.requires_grad_() if requires_grad else made


def empty(shape: int | Sequence[int], dtype: Any = "float32", device: Any = "cpu") -> CustomTensor:
    """An uninitialized tensor."""
    sizes = _check_sizes(shape)
    kind, place = dtypes.dtype(dtype), as_device(device)
    if place.engine.name != "numpy":
        return CustomTensor._wrap(place.engine.alloc(sizes, kind), place)
    block = memory_manager.pool("cpu").allocate(math.prod(sizes) * kind.itemsize)
    return CustomTensor._wrap(block.array("uint8").view(kind).reshape(sizes), place)


def _check_sizes(shape: Any) -> tuple[int, ...]:
    try:
        sizes = (int(shape),) if isinstance(shape, int) else tuple(int(s) for s in shape)
    except (TypeError, ValueError):
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise BadInput(f"cannot make a tensor of shape {shape!r}", expected="sizes from 0 up")
    return sizes


def matmul(a: Any, b: Any, out: CustomTensor | None = None) -> CustomTensor:
    """The matrix product, written to `out` if given."""
    given = next((t for t in (a, b, out) if isinstance(t, CustomTensor)), None)
    one, other = (_as_operand(value, given) for value in (a, b))
    return functional.matmul(one, other, out=out)


def _as_operand(value: Any, given: CustomTensor | None) -> CustomTensor:
    """A tensor on the device of the other; Python scalars take its dtype too."""
    if isinstance(value, CustomTensor):
        return value
    if given is None:
        return tensor(value)
    return tensor(value, None if hasattr(value, "dtype") else given.dtype, given.device)


def zeros(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    return full(_sizes(shape), 0, dtype, device)


def ones(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    return full(_sizes(shape), 1, dtype, device)


def full(shape: Any, value: Any, dtype: Any = None, device: Any = None) -> CustomTensor:
    """A tensor filled with `value`."""
    kind = dtypes.of_scalar(value) if dtype is None else dtypes.dtype(dtype)
    return _on(device, functional.full(list(_check_sizes(shape)), value, dtype=kind))


def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: Any = None
) -> CustomTensor:
    """From `start` (0 if only one argument is given) up to, excluding, `end`."""
    if end is None:
        start, end = 0, start
    kind = None if dtype is None else dtypes.dtype(dtype)
    return _on(device, functional.arange(start, end, step, dtype=kind))


def rand(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Uniform random numbers in [0, 1)."""
    return _on(device, functional.rand(list(_sizes(shape)), dtype=dtypes.dtype(dtype)))


def randn(*shape: Any, dtype: Any = "float32", device: Any = None) -> CustomTensor:
    """Random numbers of the standard normal distribution."""
    return _on(device, functional.randn(list(_sizes(shape)), dtype=dtypes.dtype(dtype)))


def randint(
    low: int, high: int, shape: Any, dtype: Any = "int64", device: Any = None
) -> CustomTensor:
    """Random integers from `low` up to, excluding, `high`."""
    made = functional.randint(low, high, list(_check_sizes(shape)), dtype=dtypes.dtype(dtype))
    return _on(device, made)


def from_numpy(array: Any, device: Any = None) -> CustomTensor:
    """A tensor that shares an array's memory. Raises BadInput for unsupported dtypes."""
    if not isinstance(array, numpy.ndarray):
        raise BadInput(
            f"from_numpy() of a {type(array).__name__}",
            expected="a NumPy array, whose memory the tensor will share",
            hint="tensor(data), which copies",
        )
    dtypes.dtype(array.dtype)
    place = as_device(device)
    if place.engine.name != "numpy":
        return CustomTensor._wrap(place.engine.upload(array), place)
    return CustomTensor._wrap(array, place)


def from_dlpack(source: Any) -> CustomTensor:
    """A tensor that shares host memory with any object that supports DLPack."""
    if not hasattr(source, "__dlpack__"):
        raise BadInput(
            f"from_dlpack() of a {type(source).__name__}",
            expected="an array of NumPy, torch, JAX or another library that speaks DLPack",
            hint="tensor(data), which copies",
        )
    return from_numpy(numpy.from_dlpack(source))


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    return _check_sizes(given[0] if len(given) == 1 else given)


def _on(device: Any, made: CustomTensor) -> CustomTensor:
    place: CustomDevice = default_device() if device is None else as_device(device)
    return made if place == made.device else made.to(place)
