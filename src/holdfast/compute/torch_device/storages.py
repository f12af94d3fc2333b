"""Storages on the device, as torch's users handle them apart from tensors.

Covers: making one, other sizes, moving one into memory that processes share.
Leaves to others: arrays as tensors (`storage`), files (`saving`), sending (`processes`).
Promise: a storage keeps its identity when its memory is replaced: every tensor that looks at it
sees the new memory, with the old numbers in it.

torch asks an allocator written in C++ for the memory of `UntypedStorage(n, device=…)`, and dies of
a segmentation fault where a device has none. What is made here is made of arrays.
"""

from __future__ import annotations

import io
import os
import threading
from typing import Any

import numpy
import torch
from torch.storage import _load_from_bytes

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.compute.torch_device import elsewhere
from holdfast.compute.torch_device import storage as arrays
from holdfast.compute.torch_device.errors import as_torch_has_it

Storage: Any = torch.UntypedStorage
_BYTES = numpy.dtype(numpy.uint8)
_lock = threading.Lock()  # for who moves a storage: two threads may send the same


def install() -> None:
    """Let torch's class of storages make and change those of the device. Once is enough."""
    Storage.__new__ = staticmethod(_new(Storage.__new__))
    for name, ours in (
        ("resize_", resize),
        ("share_memory_", share),
        ("is_shared", _is_shared),
        ("__reduce__", _reduced),
        ("_write_file", _written),
        ("_set_from_file", _filled),
    ):
        setattr(Storage, name, _also_on_device(getattr(Storage, name), ours))


def _on_device(place: Any) -> bool:
    return place is not None and torch.device(place).type == arrays.DEVICE


def _also_on_device(theirs: Any, ours: Any) -> Any:
    """A method of storages that is ours for those of the device."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = ours if self.device.type == arrays.DEVICE else theirs
        return chosen(self, *args, **kwargs)

    method.__name__, method.__doc__ = theirs.__name__, theirs.__doc__
    return method


def _new(theirs: Any) -> Any:
    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _on_device(device):
            if device is not None:
                kwargs["device"] = device
            return theirs(cls, *args, **kwargs)
        return made(*args, device=torch.device(device), **kwargs)

    return new


def made(size: Any = 0, *, device: Any = None, allocator: Any = None) -> Any:
    """A storage on the device: of so many bytes, or with these bytes in it."""
    if allocator is not None:
        raise _refused(
            "cannot make a storage on the device with another allocator",
            expected="allocator=None: its memory comes from Holdfast's pools",
        )
    if not isinstance(size, int):
        array = _alloc(len(size), device)
        _write(array, numpy.array(size, _BYTES))
        return _of(array)
    if size < 0:
        raise _refused(f"cannot make a storage of {size} bytes", expected="0 or more bytes")
    return _of(_alloc(size, device))


def _refused(what: str, *, expected: str, hint: str | None = None) -> HoldfastError:
    return as_torch_has_it(BadInput(what, expected=expected, hint=hint))


def _alloc(nbytes: int, device: Any) -> Any:
    from holdfast.compute.torch_device import crossing

    return _room(crossing.chosen_for(device), nbytes)


def _room(engine: Any, nbytes: int) -> Any:
    try:
        return engine.alloc((nbytes,), _BYTES)
    except HoldfastError as exc:
        raise as_torch_has_it(exc) from exc


def _write(target: Any, source: Any) -> None:
    from holdfast.compute.torch_device import crossing

    crossing.write(target, source)


def _of(array: Any) -> Any:
    return arrays.up(array).untyped_storage()


def content(storage: Any) -> Any:
    """All bytes of a storage on the device, as an array over its memory."""
    if not storage.nbytes():
        return numpy.empty(0, _BYTES)
    return arrays.down(_whole(storage))


def _whole(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def resize(storage: Any, nbytes: int) -> Any:
    """Give a storage on the device another size; what fits stays in it."""
    if nbytes < 0:
        raise _refused(f"cannot give a storage {nbytes} bytes", expected="0 or more bytes")
    before = storage.nbytes()
    if nbytes == before:
        return storage
    array = _room(_engine(storage), nbytes)
    kept = min(nbytes, before)
    if kept:
        _write(_first(array, kept), _first(content(storage), kept))
    _replace(storage, _of(array))
    return storage


def _engine(storage: Any) -> Any:
    """Who has the memory of a storage."""
    from holdfast.compute.engine import ENGINES, engine_of

    held = getattr(storage, "held", None)
    return ENGINES["numpy"] if held is None else engine_of(held)


def _first(array: Any, nbytes: int) -> Any:
    """The first bytes of an array of bytes."""
    if isinstance(array, numpy.ndarray):
        return array[:nbytes]
    return elsewhere.content(array, nbytes)


def share(storage: Any) -> Any:
    """Move a storage on the device into memory that processes share, where it stays.

    Raises Refused where an engine computes that has memory of its own.
    """
    with _lock:
        if _is_shared(storage) or not storage.nbytes():
            return storage
        if elsewhere.is_far(getattr(storage, "held", None)):
            raise _refused(
                f"the memory of {storage.device} is its own: processes cannot share it",
                expected="a tensor on the CPU, or the engine 'numpy'",
                hint="tensor.cpu() before it is sent or shared",
            )
        made = on_shared(Storage._new_shared(storage.nbytes()))
        content(made)[...] = content(storage)
        _replace(storage, made)
    return storage


def on_shared(common: Any) -> Any:
    """A storage on the device over one that processes share, which it keeps as `.common`."""
    made = _of(torch.empty(0, dtype=torch.uint8).set_(common).numpy())
    made.common = common
    return made


def _reduced(storage: Any) -> Any:
    """How a storage is pickled: torch's old format, its default, cannot read 8-bit floats back."""
    file = io.BytesIO()
    torch.save(storage, file)
    return _load_from_bytes, (file.getvalue(),)


def _written(storage: Any, *args: Any) -> None:
    """Write a storage to a file, as torch's old format does: it would read from the address."""
    storage.cpu()._write_file(*args)


def _filled(storage: Any, *args: Any) -> Any:
    """Read a storage from a file, the same way."""
    host = Storage(storage.nbytes())
    host._set_from_file(*args)
    return storage.copy_(host)


def _is_shared(storage: Any) -> bool:
    return getattr(storage, "common", None) is not None


def _replace(storage: Any, other: Any) -> None:
    """Let a storage have the memory of another, which nobody else has seen."""
    swap = getattr(storage, "_swap_data_ptr_", None)
    if swap is None:
        raise Unsupported(
            f"torch {torch.__version__} cannot give a storage other memory",
            expected="torch 2.13, whose storages have _swap_data_ptr_",
        )
    if storage.nbytes() != other.nbytes():  # torch swaps equal sizes, or any with none
        none = _of(_room(_engine(storage), 0))
        if storage.nbytes() and other.nbytes():
            swap(none)
    swap(other)
    vars(storage).clear()
    vars(storage).update(vars(other))


def _renew_lock() -> None:
    """A forked process has one thread: whoever held the lock is not there to give it back."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
