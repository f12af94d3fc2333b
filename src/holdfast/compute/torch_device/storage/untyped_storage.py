"""`torch.UntypedStorage` on the device: making, resizing, sharing between processes.

A storage keeps its identity when its memory is replaced: every tensor over it sees the new memory,
with the old content.

torch asks an allocator written in C++ for the memory of `UntypedStorage(n, device=…)`, and dies of
a segmentation fault where a device has none. Here storages are made of arrays.
"""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy
import torch
from torch.storage import _load_from_bytes

from holdfast.base.errors import HoldfastError, Unsupported
from holdfast.base.threads import register_at_fork
from holdfast.compute.torch_device.error_translation import to_torch_error
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import remote_storage
from holdfast.compute.torch_device.storage import tensor_bridge as arrays

Storage: Any = torch.UntypedStorage
_BYTES = numpy.dtype(numpy.uint8)
_lock = threading.Lock()  # two threads may share the same storage


def install() -> None:
    """Have `torch.UntypedStorage` make and change storages of the device. Once is enough."""
    Storage.__new__ = staticmethod(_new(Storage.__new__))
    for name, ours in (
        ("resize_", resize),
        ("share_memory_", share),
        ("is_shared", _is_shared),
        ("__reduce__", _reduce),
        ("_write_file", _write_file),
        ("_set_from_file", _set_from_file),
    ):
        setattr(Storage, name, _make_method(getattr(Storage, name), ours))


def _make_method(theirs: Any, ours: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = ours if self.device.type == arrays.DEVICE else theirs
        return chosen(self, *args, **kwargs)

    method.__name__, method.__doc__ = theirs.__name__, theirs.__doc__
    return method


def _new(theirs: Any) -> Any:
    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return theirs(cls, *args, **kwargs)
        place = torch.device(device)
        if place.type != arrays.DEVICE:
            return theirs(cls, *args, device=device, **kwargs)
        return make_storage(*args, device=place, **kwargs)

    return new


def make_storage(size: Any = 0, *, device: Any = None, allocator: Any = None) -> Any:
    """Make a storage on the device: of `size` bytes, or with these bytes in it."""
    if allocator is not None:
        raise Refused(
            "cannot make a storage on the device with another allocator",
            expected="allocator=None: its memory comes from Holdfast's pools",
        )
    if not isinstance(size, int):
        array = _alloc(len(size), device)
        _write(array, numpy.array(size, _BYTES))
        return _storage_of(array)
    if size < 0:
        raise Refused(f"cannot make a storage of {size} bytes", expected="0 or more bytes")
    return _storage_of(_alloc(size, device))


def _alloc(nbytes: int, device: Any) -> Any:
    from holdfast.compute.torch_device.dispatch import engine_dispatch

    return _alloc_on(engine_dispatch.engine_for(device), nbytes)


def _alloc_on(engine: Any, nbytes: int) -> Any:
    try:
        return engine.alloc((nbytes,), _BYTES)
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc


def _write(target: Any, source: Any) -> None:
    from holdfast.compute.torch_device.dispatch import engine_dispatch

    engine_dispatch.write(target, source)


def _storage_of(array: Any) -> Any:
    return arrays.as_tensor(array).untyped_storage()


def content(storage: Any) -> Any:
    """All bytes of a storage on the device, as an array over its memory."""
    if not storage.nbytes():
        return numpy.empty(0, _BYTES)
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return arrays.as_array(whole)


def resize(storage: Any, nbytes: int) -> Any:
    """Resize a storage on the device; content that fits is kept."""
    if nbytes < 0:
        raise Refused(f"cannot give a storage {nbytes} bytes", expected="0 or more bytes")
    before = storage.nbytes()
    if nbytes == before:
        return storage
    array = _alloc_on(_engine(storage), nbytes)
    kept = min(nbytes, before)
    if kept:
        _write(_first(array, kept), _first(content(storage), kept))
    _replace(storage, _storage_of(array))
    return storage


def _engine(storage: Any) -> Any:
    from holdfast.compute.engine import ENGINES, engine_of

    held = getattr(storage, "held", None)
    return ENGINES["numpy"] if held is None else engine_of(held)


def _first(array: Any, nbytes: int) -> Any:
    if isinstance(array, numpy.ndarray):
        return array[:nbytes]
    return remote_storage.content(array, nbytes)


def share(storage: Any) -> Any:
    """Move a storage on the device into shared memory, where it stays.

    Raises Refused for an engine with its own memory.
    """
    with _lock:
        if _is_shared(storage) or not storage.nbytes():
            return storage
        if remote_storage.is_remote(getattr(storage, "held", None)):
            raise Refused(
                f"the memory of {storage.device} is its own: processes cannot share it",
                expected="a tensor on the CPU, or the engine 'numpy'",
                hint="tensor.cpu() before it is sent or shared",
            )
        made = wrap_shared(Storage._new_shared(storage.nbytes()))
        content(made)[...] = content(storage)
        _replace(storage, made)
    return storage


def wrap_shared(common: Any) -> Any:
    """A storage on the device over a shared one, which it keeps as `.common`."""
    made = _storage_of(torch.empty(0, dtype=torch.uint8).set_(common).numpy())
    made.common = common
    return made


def _reduce(storage: Any) -> Any:
    """Pickle by torch.save: torch's default, its old file format, loses 8-bit floats."""
    file = io.BytesIO()
    torch.save(storage, file)
    return _load_from_bytes, (file.getvalue(),)


def _write_file(storage: Any, *args: Any) -> None:
    """Write a storage from a CPU copy: torch's old file format would read from the address."""
    storage.cpu()._write_file(*args)


def _set_from_file(storage: Any, *args: Any) -> Any:
    """Read a storage through a CPU copy."""
    host = Storage(storage.nbytes())
    host._set_from_file(*args)
    return storage.copy_(host)


def _is_shared(storage: Any) -> bool:
    return getattr(storage, "common", None) is not None


def _replace(storage: Any, other: Any) -> None:
    """Give a storage the memory of another that nobody else uses."""
    swap = getattr(storage, "_swap_data_ptr_", None)
    if swap is None:
        raise Unsupported(
            f"torch {torch.__version__} cannot give a storage other memory",
            expected="torch 2.13, whose storages have _swap_data_ptr_",
        )
    if storage.nbytes() != other.nbytes():  # torch swaps equal sizes, or with an empty storage
        none = _storage_of(_alloc_on(_engine(storage), 0))
        if storage.nbytes() and other.nbytes():
            swap(none)
    swap(other)
    vars(storage).clear()
    vars(storage).update(vars(other))


def _renew_lock() -> None:
    """A thread of the parent may have held the lock: nobody here would release it."""
    global _lock
    _lock = threading.Lock()


register_at_fork(after_in_child=_renew_lock)
