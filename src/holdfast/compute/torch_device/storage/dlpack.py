"""Tensors over an address, by DLPack capsules that NumPy writes and torch reads; dtypes of both.

torch makes a tensor of any DLPack capsule, on the device that the capsule names. NumPy writes the
capsule and keeps the array alive; the one word that says "CPU" is overwritten with the word for the
device. That takes 1 µs, less than half of building a storage and setting it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy
import torch

from holdfast.base.errors import Unsupported
from holdfast.compute import dtype as dtypes
from holdfast.compute.torch_device.errors import Refused

Array = Any
DEVICE = "holdfast"
ON_DEVICE, ON_CPU = 12, 1  # DLPack's kDLExtDev and kDLCPU

from_capsule: Any = torch._C._from_dlpack
to_capsule: Any = torch._C._to_dlpack


class _Capsule(ctypes.Structure):
    """A PyCapsule, as CPython lays it out, around a DLManagedTensor."""

    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("words", ctypes.POINTER(ctypes.c_int32)),
    )


capsule_at: Any = _Capsule.from_address
DEVICE_WORD = 2  # index among the 32-bit words, after the data's address
_INDEX = 3  # which device of that kind
_DTYPE = 5  # after device, index and number of dimensions


# dtypes that NumPy lacks are passed as integers of their size; the capsule then names the dtype.
EXTRA = {
    dtypes.DTYPES[name]: (numpy.dtype(f"uint{bits}"), code | bits << 8 | 1 << 16)
    for name, code, bits in (("bfloat16", 4, 16), ("float8_e4m3fn", 10, 8), ("float8_e5m2", 12, 8))
    if name in dtypes.DTYPES
}
TO_TORCH: dict[Any, torch.dtype] = {
    kind: getattr(torch, name) for name, kind in dtypes.DTYPES.items()
}
TO_NUMPY: dict[torch.dtype, Any] = {theirs: ours for ours, theirs in TO_TORCH.items()}


def tensor_over(array: Array, device: int, kind: Any, index: int = 0) -> torch.Tensor:
    """A tensor of dtype `kind` over the memory of a writable NumPy array."""
    plain, word = EXTRA.get(kind, (array.dtype, 0))
    try:
        capsule = (array if plain is array.dtype else array.view(plain)).__dlpack__()
    except BufferError as exc:
        raise Unsupported(
            f"torch has no number format for {kind}", expected=f"one of {', '.join(dtypes.DTYPES)}"
        ) from exc
    words = capsule_at(id(capsule)).words
    words[DEVICE_WORD], words[_INDEX] = device, index
    if word:
        words[_DTYPE] = word
    return from_capsule(capsule)


def numpy_dtype(kind: torch.dtype) -> Any:
    """torch's dtype as NumPy's. Raises Unsupported."""
    found = TO_NUMPY.get(kind)
    if found is None:
        raise Unsupported(
            f"the device has no tensors of {kind}", expected=f"one of {', '.join(dtypes.DTYPES)}"
        )
    return found


def bytes_at(address: int, count: int, owner: Any) -> Array:
    """Bytes at an address, as an array that keeps `owner` alive."""
    interface = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}
    return numpy.asarray(_Interface(interface, owner))


class _Interface:
    """Gives NumPy an address; the array keeps this alive, and `owner` with it."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def storage_too_small(tensor: torch.Tensor, nbytes: int) -> Refused:
    """The error of a tensor that is larger than its storage."""
    return Refused(
        f"cannot compute with a {tensor.dtype} tensor of {tuple(tensor.shape)}: its storage has "
        f"{nbytes} bytes",
        expected="a storage that holds every element",
        hint="storage.resize_() back to its size",
    )
