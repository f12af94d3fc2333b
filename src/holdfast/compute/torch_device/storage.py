"""Arrays as torch tensors on the device, and back, over the same memory.

Covers: handing an array to torch, finding the array of a tensor, number formats of both.
Leaves to others: computing (`handlers`), what torch does with sizes and strides (its own kernels).
Promise: nothing is copied unless torch cannot describe the array; a storage keeps its array alive,
and every view of the storage with it.

torch makes a tensor of any DLPack capsule, and takes the device that the capsule names. NumPy
writes the capsule and answers for the array's life; the one word that says "CPU" is overwritten
with the word for the device. That takes 1 µs, less than half of building a storage and setting it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy
import torch

from holdfast.base.errors import Unsupported
from holdfast.compute import dtype as formats
from holdfast.compute.torch_device.errors import Refused

Array = Any
DEVICE = "holdfast"
_ON_DEVICE, _ON_CPU = 12, 1  # DLPack's kDLExtDev and kDLCPU

_from_capsule: Any = torch._C._from_dlpack
_to_capsule: Any = torch._C._to_dlpack


class _Capsule(ctypes.Structure):
    """A PyCapsule, as CPython lays it out, around a DLManagedTensor."""

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("words", ctypes.POINTER(ctypes.c_int32)),
    )


_capsule_at: Any = _Capsule.from_address
_PLACE = 2  # among the words of 32 bits: behind the data's address
_FORMAT = 5  # behind the place, its number and the count of dimensions


def _format_word(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


# What NumPy has no name for travels as whole numbers of its size; the capsule then says otherwise.
_EXTRA = {
    formats.DTYPES[name]: (numpy.dtype(f"uint{bits}"), _format_word(code, bits))
    for name, code, bits in (
        ("bfloat16", 4, 16),
        ("float8_e4m3fn", 10, 8),
        ("float8_e5m2", 12, 8),
    )
    if name in formats.DTYPES
}
TO_TORCH: dict[Any, torch.dtype] = {
    kind: getattr(torch, name) for name, kind in formats.DTYPES.items()
}
TO_NUMPY: dict[torch.dtype, Any] = {theirs: ours for ours, theirs in TO_TORCH.items()}


def up(array: Array) -> torch.Tensor:
    """A tensor on the device over an array's memory."""
    if not array.flags.forc:
        array = _presentable(array)
    try:
        capsule = array.__dlpack__()
    except (BufferError, TypeError):
        return _up_other(array)
    _capsule_at(id(capsule)).words[_PLACE] = _ON_DEVICE
    made = _from_capsule(capsule)
    made.untyped_storage().held = array
    return made


def on_cpu(array: Array) -> torch.Tensor:
    """A tensor on the CPU over an array's memory."""
    return _over(_presentable(array), _ON_CPU)


def _up_other(array: Array) -> torch.Tensor:
    """What NumPy makes no capsule of: broadcast arrays, and formats that it does not know."""
    if not array.flags.writeable:
        array = array.copy()
    made: Any = _over(array, _ON_DEVICE)
    made.untyped_storage().held = array
    return made


def _over(array: Array, place: int) -> torch.Tensor:
    plain, word = _EXTRA.get(array.dtype, (None, 0))
    if not array.flags.writeable:
        array = array.copy()
    try:
        capsule = (array if plain is None else array.view(plain)).__dlpack__()
    except BufferError as exc:
        raise Unsupported(
            f"torch has no number format for {array.dtype}",
            expected=f"one of {', '.join(formats.DTYPES)}",
        ) from exc
    words = _capsule_at(id(capsule)).words
    words[_PLACE] = place
    if plain is not None:
        words[_FORMAT] = word
    return _from_capsule(capsule)


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
    if (
        tensor.shape == array.shape
        and TO_NUMPY.get(tensor.dtype) is array.dtype
        and tensor.is_contiguous()
        and array.flags.c_contiguous
    ):
        return array
    return _view(tensor, array)


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
    raise _beyond(tensor, flat)


def _beyond(tensor: torch.Tensor, flat: Array) -> Refused:
    return Refused(
        f"cannot compute with a {tensor.dtype} tensor of {tuple(tensor.shape)}: its storage has "
        f"{flat.size} bytes",
        expected="a storage that holds every element",
        hint="storage.resize_() back to its size",
    )


def _bytes_of(array: Array, count: int) -> Array:
    """All bytes from the first element of an array to its last, as an array that keeps it alive."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(numpy.uint8)
    if array.flags.f_contiguous:
        return array.T.reshape(-1).view(numpy.uint8)
    return _bytes_at(array.__array_interface__["data"][0], count, array)


def _memory_of(storage: Any) -> Array:
    """All bytes of a storage; kept on the storage the array would keep it alive for good."""
    return _bytes_at(storage.data_ptr(), storage.nbytes(), storage)


def _bytes_at(address: int, count: int, owner: Any) -> Array:
    interface = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}
    return numpy.asarray(_Interface(interface, owner))


class _Interface:
    """What NumPy reads an address from; the array that it makes keeps this, and `owner` with it."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def numpy_format(kind: torch.dtype) -> Any:
    """torch's number format as ours. Raises Unsupported."""
    found = TO_NUMPY.get(kind)
    if found is None:
        raise Unsupported(
            f"the device has no tensors of {kind}",
            expected=f"one of {', '.join(formats.DTYPES)}",
        )
    return found


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
    if kind in _EXTRA or end > storage.nbytes() or not tensor.is_contiguous():
        return _part(tensor, _memory_of(storage))
    capsule = _to_capsule(tensor)  # half the time of the general way
    _capsule_at(id(capsule)).words[_PLACE] = _ON_CPU
    return _from_capsule(capsule).numpy()


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
    plain, _ = _EXTRA.get(ours, (None, 0))
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
        larger = numpy.empty(needed, numpy.uint8)
        if storage.nbytes():
            larger[: storage.nbytes()] = _memory_of(storage)
        storage = up(larger).untyped_storage()
    _set_(_KEYS, tensor, storage, tensor.storage_offset(), shape, strides)
    return tensor
