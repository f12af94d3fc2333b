"""Arrays of NumPy as torch tensors on the device, and back, over the same memory.

Nothing is copied unless torch cannot describe the array. A storage keeps its array alive, and every
view of the storage does too. Arrays of other engines are passed on to `remote_storage`.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import remote_storage
from holdfast.compute.torch_device.storage.dlpack import (
    DEVICE,
    DEVICE_WORD,
    EXTRA,
    ON_CPU,
    ON_DEVICE,
    TO_NUMPY,
    TO_TORCH,
    bytes_at,
    capsule_at,
    from_capsule,
    numpy_dtype,
    storage_too_small,
    tensor_over,
    to_capsule,
)

Array = Any
_ndarray = numpy.ndarray


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor on the device over an array's memory."""
    if type(array) is not _ndarray and not isinstance(array, _ndarray):
        return remote_storage.as_tensor(array)
    if not array.flags.forc:
        array = _presentable(array)
    try:
        capsule = array.__dlpack__()
    except (BufferError, TypeError):
        return _as_tensor_other(array)
    capsule_at(id(capsule)).words[DEVICE_WORD] = ON_DEVICE
    made = from_capsule(capsule)
    made.untyped_storage().held = array
    return made


def as_cpu_tensor(array: Array) -> torch.Tensor:
    """A tensor on the CPU over an array's memory."""
    if not isinstance(array, _ndarray):
        array = array.engine.download(array)
    array = _presentable(array)
    return tensor_over(array if array.flags.writeable else array.copy(), ON_CPU, array.dtype)


def _as_tensor_other(array: Array) -> torch.Tensor:
    """A tensor over an array that NumPy makes no capsule of: a broadcast one, or another dtype."""
    if not array.flags.writeable:
        array = array.copy()
    made: Any = tensor_over(array, ON_DEVICE, array.dtype)
    made.untyped_storage().held = array
    return made


def _presentable(array: Array) -> Array:
    """The array, or a copy where torch cannot describe its strides."""
    unfit = any(s < 0 or s % array.itemsize for s in array.strides)
    return array.copy() if unfit else array


def as_array(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device; a scalar tensor may be on the CPU."""
    try:
        storage: Any = tensor.untyped_storage()
        array = storage.held
    except AttributeError:
        return _as_array_other(tensor)
    if type(array) is not _ndarray and not isinstance(array, _ndarray):
        return remote_storage.view_of(tensor, array)
    if (
        tensor.shape == array.shape
        and TO_NUMPY.get(tensor.dtype) is array.dtype
        and tensor.is_contiguous()
        and array.flags.c_contiguous
    ):
        return array
    return _view(tensor, array)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the host can read the memory of a tensor on the device."""
    held = getattr(tensor.untyped_storage(), "held", None)
    return held is None or isinstance(held, _ndarray)


def _view(tensor: torch.Tensor, held: Array) -> Array:
    """The view of its storage's array that a tensor is."""
    storage: Any = tensor.untyped_storage()
    try:
        flat = storage.flat
    except AttributeError:
        flat = storage.flat = _bytes_of(held, storage.nbytes())
    return _view_bytes(tensor, flat)


def _view_bytes(tensor: torch.Tensor, flat: Array) -> Array:
    """The view of its storage's bytes that a tensor is."""
    kind = numpy_dtype(tensor.dtype)
    size = kind.itemsize
    strides = [step * size for step in tensor.stride()]
    offset = tensor.storage_offset() * size
    if not tensor.numel():
        return numpy.empty(tuple(tensor.shape), kind)
    try:
        if flat.size:  # NumPy does not check an empty buffer, and would read behind it
            return numpy.ndarray(tuple(tensor.shape), kind, flat, offset, strides)
    except (TypeError, ValueError):
        pass  # the buffer is too small
    raise storage_too_small(tensor, flat.size)


def _bytes_of(array: Array, count: int) -> Array:
    """All bytes from the first element of an array to its last, as an array that keeps it alive."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(numpy.uint8)
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view(numpy.uint8)
    return bytes_at(array.__array_interface__["data"][0], count, array)


def _memory_of(storage: Any) -> Array:
    """All bytes of a storage. Not cached on it: the array would keep it alive for good."""
    return bytes_at(storage.data_ptr(), storage.nbytes(), storage)


def as_array_any(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device or on the CPU."""
    return from_cpu(tensor) if tensor.device.type == "cpu" else as_array(tensor)


def _as_array_other(tensor: torch.Tensor) -> Array:
    """The array of a tensor that `as_tensor` did not make."""
    if tensor.device.type == "cpu" and not tensor.dim():
        return from_cpu(tensor)
    if not tensor.numel():
        return numpy.empty(tuple(tensor.shape), numpy_dtype(tensor.dtype))
    if tensor.device.type == DEVICE:
        return _as_array_torch(tensor)
    raise device_mismatch(tensor)


def _as_array_torch(tensor: torch.Tensor) -> Array:
    """The array of a tensor that torch made, for example in the shim."""
    kind = numpy_dtype(tensor.dtype)
    storage: Any = tensor.untyped_storage()
    end = (tensor.storage_offset() + tensor.numel()) * kind.itemsize
    if kind in EXTRA or end > storage.nbytes() or not tensor.is_contiguous():
        return _view_bytes(tensor, _memory_of(storage))
    capsule = to_capsule(tensor)  # half the time of the general path
    capsule_at(id(capsule)).words[DEVICE_WORD] = ON_CPU
    return from_capsule(capsule).numpy()


def device_mismatch(tensor: torch.Tensor) -> Refused:
    """The error of a call with a tensor on another device."""
    return Refused(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{DEVICE}:0 and {tensor.device}",
        expected=f"every tensor on {DEVICE!r}; numbers and indices may be on the CPU",
        hint=f"tensor.to({DEVICE!r}) for the {tensor.dtype} tensor of {list(tensor.shape)}",
    )


def check_writable(array: Array) -> None:
    """Raises Refused where elements share memory."""
    if not array.size or 0 not in array.strides:
        return
    if any(not step and size > 1 for step, size in zip(array.strides, array.shape, strict=True)):
        raise Refused(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location",
            expected="a tensor whose elements are all its own",
            hint="tensor.clone() before writing",
        )


def from_cpu(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the CPU, over the same memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    ours = numpy_dtype(tensor.dtype)
    plain, _ = EXTRA.get(ours, (None, 0))
    if plain is None:
        return tensor.numpy()
    return tensor.view(TO_TORCH[plain]).numpy().view(ours)


_set_: Any = torch.library.get_kernel("aten::set_.source_Storage_storage_offset", "CPU").call_boxed
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


_as_strided: Any = torch.library.get_kernel("aten::as_strided", "CPU").call_boxed


def make_view(tensor: torch.Tensor, shape: Any, strides: Any, offset: int = 0) -> torch.Tensor:
    """A view of a tensor on the device."""
    return _as_strided(_KEYS, tensor, shape, strides, offset)


def put(tensor: torch.Tensor, array: Array) -> None:
    """Point a tensor on the device at another array, with its shape."""
    made = as_tensor(array)
    _set_(_KEYS, tensor, made.untyped_storage(), 0, tuple(made.shape), made.stride())


def resize(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Resize a tensor; a storage that is too small is replaced by a larger one."""
    count = 1
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, count)
        count *= max(size, 1)
    needed = (count + tensor.storage_offset()) * tensor.element_size()
    storage: Any = tensor.untyped_storage()
    if needed > storage.nbytes() and 0 not in shape:
        storage = _enlarge(storage, int(needed))
    _set_(_KEYS, tensor, storage, tensor.storage_offset(), shape, strides)
    return tensor


def _enlarge(storage: Any, nbytes: int) -> Any:
    """A larger storage that begins with the same bytes."""
    before = storage.nbytes()
    held = getattr(storage, "held", None)
    if held is not None and not isinstance(held, _ndarray):
        room = held.engine.alloc((nbytes,), numpy.dtype(numpy.uint8))
        if before:
            target, source = (remote_storage.content(one, before) for one in (room, held))
            held.engine.write(target, source)
        return as_tensor(room).untyped_storage()
    larger = numpy.empty(nbytes, numpy.uint8)
    if before:
        larger[:before] = _memory_of(storage)
    return as_tensor(larger).untyped_storage()
