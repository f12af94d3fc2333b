"""Arrays as torch tensors on the device, and back, over the same memory.

Covers: handing an array to torch, finding the array of a tensor, number formats of both.
Leaves to others: computing (`handlers`), what torch does with sizes and strides (its own kernels),
arrays that are not NumPy's (`elsewhere`).
Promise: nothing is copied unless torch cannot describe the array; a storage keeps its array alive,
and every view of the storage with it.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from holdfast.compute.torch_device import elsewhere
from holdfast.compute.torch_device.capsules import (
    DEVICE,
    EXTRA,
    ON_CPU,
    ON_DEVICE,
    PLACE,
    TO_NUMPY,
    TO_TORCH,
    beyond,
    bytes_at,
    capsule_at,
    from_capsule,
    numpy_format,
    over,
    to_capsule,
)
from holdfast.compute.torch_device.errors import Refused

Array = Any
_ndarray = numpy.ndarray


def up(array: Array) -> torch.Tensor:
    """A tensor on the device over an array's memory."""
    if type(array) is not _ndarray and not isinstance(array, _ndarray):
        return elsewhere.up(array)
    if not array.flags.forc:
        array = _presentable(array)
    try:
        capsule = array.__dlpack__()
    except (BufferError, TypeError):
        return _up_other(array)
    capsule_at(id(capsule)).words[PLACE] = ON_DEVICE
    made = from_capsule(capsule)
    made.untyped_storage().held = array
    return made


def on_cpu(array: Array) -> torch.Tensor:
    """A tensor on the CPU over an array's memory."""
    if not isinstance(array, _ndarray):
        array = array.engine.download(array)
    array = _presentable(array)
    return over(array if array.flags.writeable else array.copy(), ON_CPU, array.dtype)


def _up_other(array: Array) -> torch.Tensor:
    """What NumPy makes no capsule of: broadcast arrays, and formats that it does not know."""
    if not array.flags.writeable:
        array = array.copy()
    made: Any = over(array, ON_DEVICE, array.dtype)
    made.untyped_storage().held = array
    return made


def _presentable(array: Array) -> Array:
    """The array, or a copy where torch has no strides for it: backwards, or between elements."""
    size = array.itemsize
    if any(s < 0 or s % size for s in array.strides):
        return array.copy()
    return array


def down(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device; a number may be on the CPU."""
    try:
        storage: Any = tensor.untyped_storage()
        array = storage.held
    except AttributeError:
        return _down_other(tensor)
    if type(array) is not _ndarray and not isinstance(array, _ndarray):
        return elsewhere.part(tensor, array)
    if (
        tensor.shape == array.shape
        and TO_NUMPY.get(tensor.dtype) is array.dtype
        and tensor.is_contiguous()
        and array.flags.c_contiguous
    ):
        return array
    return _view(tensor, array)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor on the device are in memory that the host sees."""
    held = getattr(tensor.untyped_storage(), "held", None)
    return held is None or isinstance(held, _ndarray)


def _view(tensor: torch.Tensor, held: Array) -> Array:
    """The part of a storage that a tensor looks at."""
    storage: Any = tensor.untyped_storage()
    try:
        flat = storage.flat
    except AttributeError:
        flat = storage.flat = _bytes_of(held, storage.nbytes())
    return _part(tensor, flat)


def _part(tensor: torch.Tensor, flat: Array) -> Array:
    """What a tensor looks at among the bytes of its storage."""
    kind = numpy_format(tensor.dtype)
    size = kind.itemsize
    strides = [step * size for step in tensor.stride()]
    offset = tensor.storage_offset() * size
    if not tensor.numel():
        return numpy.empty(tuple(tensor.shape), kind)
    try:
        if flat.size:  # of an empty buffer NumPy asks nothing, and reads what is behind it
            return numpy.ndarray(tuple(tensor.shape), kind, flat, offset, strides)
    except (TypeError, ValueError):
        pass  # it says that the buffer is too small
    raise beyond(tensor, flat.size)


def _bytes_of(array: Array, count: int) -> Array:
    """All bytes from the first element of an array to its last, as an array that keeps it alive."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(numpy.uint8)
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view(numpy.uint8)
    return bytes_at(array.__array_interface__["data"][0], count, array)


def _memory_of(storage: Any) -> Array:
    """All bytes of a storage; kept on the storage the array would keep it alive for good."""
    return bytes_at(storage.data_ptr(), storage.nbytes(), storage)


def down_any(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device or on the CPU."""
    return from_cpu(tensor) if tensor.device.type == "cpu" else down(tensor)


def _down_other(tensor: torch.Tensor) -> Array:
    """The array of a tensor that has not come from `up`."""
    if tensor.device.type == "cpu" and not tensor.dim():
        return from_cpu(tensor)
    if not tensor.numel():
        return numpy.empty(tuple(tensor.shape), numpy_format(tensor.dtype))
    if tensor.device.type == DEVICE:
        return _down_torchs(tensor)
    raise apart(tensor)


def _down_torchs(tensor: torch.Tensor) -> Array:
    """The array of a tensor that torch made: the shim, or bytes on their way."""
    kind = numpy_format(tensor.dtype)
    storage: Any = tensor.untyped_storage()
    end = (tensor.storage_offset() + tensor.numel()) * kind.itemsize
    if kind in EXTRA or end > storage.nbytes() or not tensor.is_contiguous():
        return _part(tensor, _memory_of(storage))
    capsule = to_capsule(tensor)  # half the time of the general way
    capsule_at(id(capsule)).words[PLACE] = ON_CPU
    return from_capsule(capsule).numpy()


def apart(tensor: torch.Tensor) -> Refused:
    """The error of a call with a tensor that is somewhere else."""
    return Refused(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{DEVICE}:0 and {tensor.device}",
        expected=f"every tensor on {DEVICE!r}; numbers and indices may be on the CPU",
        hint=f"tensor.to({DEVICE!r}) for the {tensor.dtype} tensor of {list(tensor.shape)}",
    )


def check_writable(array: Array) -> None:
    """Raises Refused where an element of a tensor stands for several."""
    if (
        array.size
        and 0 in array.strides
        and any(
            step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
        )
    ):
        raise Refused(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location",
            expected="a tensor whose elements are all its own",
            hint="tensor.clone() before writing",
        )


def from_cpu(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the CPU, over the same memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    ours = numpy_format(tensor.dtype)
    plain, _ = EXTRA.get(ours, (None, 0))
    if plain is None:
        return tensor.numpy()
    return tensor.view(TO_TORCH[plain]).numpy().view(ours)


_set_: Any = torch.library.get_kernel("aten::set_.source_Storage_storage_offset", "CPU").call_boxed
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


_as_strided: Any = torch.library.get_kernel("aten::as_strided", "CPU").call_boxed


def viewed(tensor: torch.Tensor, shape: Any, strides: Any, offset: int = 0) -> torch.Tensor:
    """A view of a tensor on the device."""
    return _as_strided(_KEYS, tensor, shape, strides, offset)


def put(tensor: torch.Tensor, array: Array) -> None:
    """Let a tensor on the device look at another array, with its sizes."""
    made = up(array)
    _set_(_KEYS, tensor, made.untyped_storage(), 0, tuple(made.shape), made.stride())


def resize(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Give a tensor other sizes; what does not fit into its storage moves into a larger one."""
    count = 1
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, count)
        count *= max(size, 1)
    needed = (count + tensor.storage_offset()) * tensor.element_size()
    storage: Any = tensor.untyped_storage()
    if needed > storage.nbytes() and 0 not in shape:
        storage = _larger(storage, int(needed))
    _set_(_KEYS, tensor, storage, tensor.storage_offset(), shape, strides)
    return tensor


def _larger(storage: Any, nbytes: int) -> Any:
    """A storage with more room and the same bytes at its beginning."""
    before = storage.nbytes()
    held = getattr(storage, "held", None)
    if held is not None and not isinstance(held, _ndarray):
        room = held.engine.alloc((nbytes,), numpy.dtype(numpy.uint8))
        if before:
            held.engine.write(elsewhere.content(room, before), elsewhere.content(held, before))
        return up(room).untyped_storage()
    larger = numpy.empty(nbytes, numpy.uint8)
    if before:
        larger[:before] = _memory_of(storage)
    return up(larger).untyped_storage()
