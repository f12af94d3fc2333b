"""Tensors over an address, by DLPack capsules that NumPy writes and torch reads.

Covers: the capsule and the words in it, number formats of both, those that NumPy has no name for.
Leaves to others: which array a tensor is made of (`storage`, `elsewhere`).

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
PLACE = 2  # among the words of 32 bits: behind the data's address
_INDEX = 3  # which device of that kind
_FORMAT = 5  # behind the place, its number and the count of dimensions


def _format_word(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


# What NumPy has no name for travels as whole numbers of its size; the capsule then says otherwise.
EXTRA = {
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


def over(array: Array, place: int, kind: Any, index: int = 0) -> torch.Tensor:
    """A tensor of format `kind` over what an array of NumPy's that can be written to lies over."""
    plain, word = EXTRA.get(kind, (array.dtype, 0))
    try:
        capsule = (array if plain is array.dtype else array.view(plain)).__dlpack__()
    except BufferError as exc:
        raise Unsupported(
            f"torch has no number format for {kind}",
            expected=f"one of {', '.join(formats.DTYPES)}",
        ) from exc
    words = capsule_at(id(capsule)).words
    words[PLACE], words[_INDEX] = place, index
    if word:
        words[_FORMAT] = word
    return from_capsule(capsule)


def numpy_format(kind: torch.dtype) -> Any:
    """torch's number format as ours. Raises Unsupported."""
    found = TO_NUMPY.get(kind)
    if found is None:
        raise Unsupported(
            f"the device has no tensors of {kind}",
            expected=f"one of {', '.join(formats.DTYPES)}",
        )
    return found


def bytes_at(address: int, count: int, owner: Any) -> Array:
    """Bytes at an address, as an array that keeps `owner` alive."""
    interface = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}
    return numpy.asarray(_Interface(interface, owner))


class _Interface:
    """What NumPy reads an address from; the array that it makes keeps this, and `owner` with it."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def beyond(tensor: torch.Tensor, nbytes: int) -> Refused:
    """The error of a tensor that is larger than its storage."""
    return Refused(
        f"cannot compute with a {tensor.dtype} tensor of {tuple(tensor.shape)}: its storage has "
        f"{nbytes} bytes",
        expected="a storage that holds every element",
        hint="storage.resize_() back to its size",
    )
