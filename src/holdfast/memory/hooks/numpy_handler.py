"""NumPy's handler of array data, set through its C API by ctypes: a pool, or a logging handler.

An array is freed by the handler that allocated it, whatever is installed by then, in any thread. A
handler belongs to a context, like a context variable: threads that start inside the `with` block
begin with NumPy's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.base.errors import MissingDependency
from holdfast.memory.core import native_build
from holdfast.memory.hooks.import_hooks import keep_forever
from holdfast.memory.pools.memory_pool import MemoryPool
from holdfast.memory.pools.pool import Pool
from holdfast.memory.resources.resource import Host

_SET_HANDLER = 304  # PyDataMem_SetHandler in NumPy's table of C functions, since NumPy 1.22
_VERSION = 1  # of the struct below


class _Handler(ctypes.Structure):
    """`PyDataMem_Handler` of numpy/ndarraytypes.h."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


_capsules: dict[int, Any] = {}  # id of a core, which is kept alive -> its capsule


@contextlib.contextmanager
def numpy_pool(pool: Pool | MemoryPool | None = None) -> Iterator[Pool]:
    """Allocate the data of new NumPy arrays from `pool`, by default a pool made for that.

    Arrays below 16 KB stay with malloc, which has them in its own caches. Blocks nest.
    Arrays made inside may outlive it. Raises Unsupported without the compiled core.
    """
    chosen: Any = _default_pool() if pool is None else getattr(pool, "pool", pool)
    before = set_handler(handler_of(chosen))
    try:
        yield chosen
    finally:
        set_handler(before)


def logging_handler(log: Any, place: int, least: int = 0) -> Any:
    """A handler for `set_handler` that logs arrays of `least` bytes, which NumPy allocates."""
    _require_numpy()
    return _make_capsule("holdfast watch", log.functions(place, least), log)


def handler_of(pool: Pool | MemoryPool) -> Any:
    """A handler for `set_handler` that allocates from `pool`. Raises as `numpy_pool`."""
    core: Any = getattr(pool, "pool", pool).core  # pyright: ignore[reportAttributeAccessIssue]
    _require_numpy()
    native_build.require_compiled(core, "numpy_pool")
    if id(core) not in _capsules:
        _capsules[id(core)] = _make_capsule("holdfast", core.functions(), core)
    return _capsules[id(core)]


def set_handler(handler: Any) -> Any:
    """Use a handler in this context from now on; returns the previous one."""
    return _set_handler()(handler)


@functools.cache
def _default_pool() -> Pool:
    return Pool(Host(huge=True), name="numpy")  # NumPy itself asks for huge pages too


def _require_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as exc:
        raise MissingDependency(
            "a pool under NumPy needs NumPy, which is not installed",
            hint="pip install numpy",
        ) from exc


def _make_capsule(name: str, functions: Mapping[str, int], owner: object) -> Any:
    handler = _Handler(name.encode(), _VERSION)
    for part in ("context", "malloc", "calloc", "realloc", "free"):
        setattr(handler, part, functions[part])
    label = b"mem_handler"  # a capsule keeps the address of its name
    # Arrays refer to the capsule, and the capsule refers to these by bare addresses.
    keep_forever((handler, label, owner))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(handler), label, None)


@functools.cache
def _set_handler() -> Any:
    inside: Any = importlib.import_module("numpy._core._multiarray_umath")
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype = ctypes.c_void_p
    read.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(read(inside._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
    return prototype(table[_SET_HANDLER] or 0)
