"""The NumPy engine: every op of the table on the CPU; needs no compiler and no driver.

With the compiled memory core, results of 16 KB or more lie in the CPU's pool. NumPy's arrays
elsewhere in the program are not affected.

    kernels       registry of the kernels (the `@kernel` decorator), working dtypes
    threads       number of threads, threads that share a kernel's work, BLAS's threads
    c_kernels     compiles and loads the C loops of `native/`
    scipy         imports SciPy's modules on first use
    random        ops that draw random numbers
    elementwise/  arithmetic, comparisons, activations, special functions, quantization
    reduce/       sums, norms, softmax, running sums, sorting, counting
    index/        indexing, gather and scatter, embeddings
    layout/       factories, copies, cat, reflection padding, patches
    matrix/       matrix products, linear algebra, FFT, distances
    layers/       convolution, attention, pooling, normalization, losses, recurrent layers
    native        C sources of the loops
"""

# ruff: noqa: F401 (importing a module registers what is in it)
from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.errors import HoldfastError
from holdfast.compute.engines.numpy import random
from holdfast.compute.engines.numpy.elementwise import (
    activation,
    comparison,
    complex_numbers,
    gates,
    pointwise,
    polynomials,
    quantize,
    special,
)
from holdfast.compute.engines.numpy.index import embedding, indexing, scatter
from holdfast.compute.engines.numpy.kernels import KERNELS
from holdfast.compute.engines.numpy.layers import (
    attention,
    convolution,
    ctc,
    dropout,
    grid_sample,
    loss,
    normalize,
    pooling,
    recurrent,
    resample,
)
from holdfast.compute.engines.numpy.layout import assemble, factory, padding
from holdfast.compute.engines.numpy.matrix import distance, factor, fft, linalg, products
from holdfast.compute.engines.numpy.reduce import counting, cumulate, norm, reduce, softmax, sorting
from holdfast.memory.core import stacks
from holdfast.memory.hooks import numpy_handler
from holdfast.memory.pools.manager import memory_manager
from holdfast.memory.pools.memory_pool import is_debugged, is_watched

stacks.leave_out(Path(__file__).parents[2])  # an allocation's stack ends at the caller of compute
_ndarray = numpy.ndarray
_POOLED = 16384  # bytes; NumPy's handler takes arrays of this size or more from the pool


class NumpyEngine:
    """Arrays are `numpy.ndarray`."""

    name = "numpy"
    kernels = KERNELS

    def on(self, index: int) -> NumpyEngine:
        return self

    def alloc(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Any:
        return self.call(numpy.empty, (shape, dtype), {})

    def upload(self, array: Any) -> Any:
        return self.call(numpy.array, (array,), {})

    def download(self, array: Any) -> Any:
        return array

    def cast(self, array: Any, dtype: numpy.dtype[Any]) -> Any:
        if array.dtype == dtype:
            return array
        if array.dtype.kind == "c" and dtype.kind != "c" and dtype.kind != "b":
            array = array.real
        # With "K", a broadcast dimension (stride 0) would become the innermost one.
        order = "C" if 0 in array.strides else "K"
        return self.call(array.astype, (dtype, order), {})

    def write(self, array: Any, value: Any) -> None:
        array[...] = self.cast(value, array.dtype)

    def call(self, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            out = _local.context.run(kernel, *args, **kwargs)
        except RuntimeError as exc:
            if not str(exc).startswith("cannot enter context"):
                raise
            out = kernel(*args, **kwargs)  # a signal handler that runs inside a kernel
        except MemoryError:
            _make_room()
            out = _local.context.run(kernel, *args, **kwargs)
        if type(out) is not _ndarray:
            out = _as_arrays(out)
        return _move_to_blocks(out) if is_watched() else out

    def quick(self, kernel: Callable[..., Any], *args: Any) -> Any:
        """`call` for a kernel that returns one array; the result may be a NumPy scalar."""
        if is_watched():
            return self.call(kernel, args, {})
        try:
            return _local.context.run(kernel, *args)
        except RuntimeError as exc:
            if not str(exc).startswith("cannot enter context"):
                raise
            return kernel(*args)


def _make_room() -> None:
    """Free unreachable objects and the pool's cache."""
    gc.collect()
    memory_manager.pool("cpu").empty_cache()


class _KernelContext(threading.local):
    """The context kernels run in: arrays come from the pool, floating-point errors do not warn.

    Both settings are NumPy's context variables. Entering a context that has them costs a tenth of
    setting them for each call.
    """

    def __init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(_prepare)


def _prepare() -> None:
    numpy.seterr(all="ignore")
    # Without the compiled core arrays come from NumPy itself.
    with contextlib.suppress(HoldfastError):
        numpy_handler.set_handler(numpy_handler.handler_of(memory_manager.pool("cpu")))


_local = _KernelContext()


def _move_to_blocks(out: Any) -> Any:
    """Copy results into pool blocks of their own, so that recordings see small ones too.

    Under the memory debugger large results are copied as well: its leak finder knows blocks only.
    """
    if isinstance(out, tuple | list):
        return type(out)(_move_to_blocks(one) for one in out)
    if type(out) is not _ndarray or out.base is not None or not out.nbytes:
        return out
    if out.nbytes >= _POOLED and not is_debugged():
        return out
    block = memory_manager.pool("cpu").allocate(out.nbytes)
    made = block.array("uint8").view(out.dtype).reshape(out.shape)
    made[...] = out
    return made


def _as_arrays(out: Any) -> Any:
    if isinstance(out, tuple | list):
        return type(out)(_as_arrays(one) for one in out)
    return numpy.asarray(out) if isinstance(out, numpy.generic) else out


engine = NumpyEngine()
