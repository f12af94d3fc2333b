"""The NumPy engine: every op of the table on the CPU, with no compiler and no driver.

Covers: arrays from Holdfast's pool, and the kernels in the files beside this one.
Promise: the data of every result of 16 KB or more lies in the pool of the CPU where the compiled
core is there; NumPy's own arrays elsewhere in the program are left alone.
"""

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
from holdfast.compute.engines.numpy import (  # noqa: F401
    activation,
    assemble,
    attention,
    batchnorm,
    comparison,
    complex_numbers,
    convolution,
    copies,
    counting,
    ctc,
    cumulate,
    distance,
    dropout,
    embedding,
    factor,
    factory,
    fft,
    gates,
    indexing,
    linalg,
    loss,
    loss_classes,
    matrix,
    max_pooling,
    norm,
    normalize,
    padding,
    patches,
    pointwise,
    polynomials,
    pooling,
    quantize,
    random,
    recurrent,
    reduce,
    resample,
    sampling,
    scattering,
    softmax,
    sorting,
    special,
    spectral,
    views,
)
from holdfast.compute.engines.numpy.kernels import KERNELS
from holdfast.memory import numpy_handler, stacks
from holdfast.memory.manager import memory_manager
from holdfast.memory.memory_pool import debugged, watched

stacks.leave_out(Path(__file__).parents[2])  # whoever asked for a result has made it
_ndarray = numpy.ndarray
_POOLED = 16384  # bytes from which NumPy's handler takes arrays from the pool


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
        # A repeated dimension would come out as the innermost one, and set the order of results.
        order = "C" if 0 in array.strides else "K"
        return self.call(array.astype, (dtype, order), {})

    def write(self, array: Any, value: Any) -> None:
        array[...] = self.cast(value, array.dtype)

    def call(self, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            out = _surroundings.context.run(kernel, *args, **kwargs)
        except RuntimeError as exc:
            if not str(exc).startswith("cannot enter context"):
                raise
            out = kernel(*args, **kwargs)  # a signal handler computes while a kernel runs
        except MemoryError:
            _make_room()
            out = _surroundings.context.run(kernel, *args, **kwargs)
        if type(out) is not _ndarray:
            out = _as_arrays(out)
        return _seen(out) if watched() else out

    def quick(self, kernel: Callable[..., Any], *args: Any) -> Any:
        """`call` for a kernel that returns one array; the result may be a NumPy scalar."""
        if watched():
            return self.call(kernel, args, {})
        try:
            return _surroundings.context.run(kernel, *args)
        except RuntimeError as exc:
            if not str(exc).startswith("cannot enter context"):
                raise
            return kernel(*args)


def _make_room() -> None:
    """Give back what nobody uses: Python's garbage, and what the pool keeps for later."""
    gc.collect()
    memory_manager.pool("cpu").empty_cache()


class _Surroundings(threading.local):
    """What kernels run in: arrays come from the pool, and infinities are no reason to warn.

    Both are context variables of NumPy; entering a context costs a tenth of setting them.
    """

    def __init__(self) -> None:
        self.context = contextvars.Context()
        self.context.run(_prepare)


def _prepare() -> None:
    numpy.seterr(all="ignore")
    # Without the compiled core arrays come from NumPy itself.
    with contextlib.suppress(HoldfastError):
        numpy_handler.set_handler(numpy_handler.handler_of(memory_manager.pool("cpu")))


_surroundings = _Surroundings()


def _seen(out: Any) -> Any:
    """Results while memory is watched: small ones, which malloc serves, get blocks of their own.

    While it is debugged all do: the leak finder knows blocks, and not what NumPy asks the core for.
    """
    if isinstance(out, tuple | list):
        return type(out)(_seen(one) for one in out)
    if type(out) is not _ndarray or out.base is not None or not out.nbytes:
        return out
    if out.nbytes >= _POOLED and not debugged():
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
