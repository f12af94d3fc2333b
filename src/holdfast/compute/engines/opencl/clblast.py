"""CLBlast, where its library is installed: products of float32 matrices on the same queue.

Covers: finding the library, one call for a product or for a batch of them.
Leaves to others: when to use it: only where the tuner measured it faster (`tuning`).
Promise: nothing needs it. What it cannot do, or refuses, is left to the engine's own kernels.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import late_builds
from holdfast.compute.engines.opencl.array import Array

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_NAMES = ("libclblast.so.1", "libclblast.so", "clblast.dll", "libclblast.dylib")
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112
_ARRAYS = 3
_SIZE, _FLOAT, _POINTER, _INT = ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p, ctypes.c_int


def is_there() -> bool:
    """Whether it is installed and may be used. Raises BadInput for a setting it does not know."""
    wanted = Config.load().clblast
    if wanted not in ("auto", "off"):
        raise BadInput(f"HOLDFAST_CLBLAST is {wanted!r}", expected="auto or off")
    return wanted == "auto" and _library() is not None


@functools.cache
def _library() -> Any:
    found = ctypes.util.find_library("clblast")
    for name in (*_NAMES, *([found] if found else [])):
        try:
            library = ctypes.PyDLL(name)  # a call takes the GIL along: see `late_builds`
        except OSError:  # not installed, or without the OpenCL loader that it needs
            continue
        # m n k alpha, a with offset, row length and step, b, beta, c, count, queue, event
        matrix = (_POINTER, _SIZE, _SIZE, _SIZE)
        library.CLBlastSgemmStridedBatched.argtypes = (
            _INT, _INT, _INT, _SIZE, _SIZE, _SIZE, _FLOAT, *matrix, *matrix, _FLOAT, *matrix,
            _SIZE, ctypes.POINTER(_POINTER), _POINTER,
        )  # fmt: skip
        return library
    return None


def gemm(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> bool:
    """out = alpha * a @ b + beta * c; False where that was not done."""
    if out.dtype != formats.FLOAT32 or not is_there():
        return False
    laid = [found for found in map(_laid, (a, b, out)) if found is not None]
    steps = [found for found in map(_step, (a, b, out)) if found is not None]
    if len(laid) < _ARRAYS or len(steps) < _ARRAYS or laid[2][0] == _TRANSPOSED:
        return False
    if c is not None:
        engine.write(out, c)
    with engine.place.lock:
        return _call(
            engine, a, b, out, laid, steps, float(alpha), float(beta) if c is not None else 0.0
        )


def _call(
    engine: OpenCLEngine, a: Array, b: Array, out: Array, laid: Any, steps: Any, alpha: float,
    beta: float,
) -> bool:  # fmt: skip
    # Neither what made room for others, nor shared virtual memory.
    if not all(isinstance(x.memory.buffer, cl.Buffer) for x in (a, b, out)):
        return False
    (m, k), n = a.shape[2:], b.shape[3]
    given = []
    for x, (_, length), step in zip((a, b, out), laid, steps, strict=True):
        at = (x.memory.start + x.offset) // x.itemsize
        given.append((x.memory.buffer.int_ptr, at, length, step))
    queue = _POINTER(engine.place.queue.int_ptr)
    arguments = (
        _ROW_MAJOR, laid[0][0], laid[1][0], m, n, k, alpha, *given[0], *given[1], beta, *given[2],
        a.shape[0] * a.shape[1], ctypes.byref(queue), None,
    )  # fmt: skip
    multiply = functools.partial(_library().CLBlastSgemmStridedBatched, *arguments)
    if late_builds.builds_late(engine.place.device):
        return late_builds.finish_at_once(engine.place, multiply) == 0
    return multiply() == 0


def _laid(array: Array) -> tuple[int, int] | None:
    """Whether a matrix lies in rows or in columns, and how far apart they are."""
    (rows, columns), (down, across) = array.shape[2:], array.steps[2:]
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return _AS_IT_IS, max(down, columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return _TRANSPOSED, max(across, rows)
    return None


def _step(array: Array) -> int | None:
    """From matrix to matrix of a batch, where that is always the same."""
    (outer, inner), steps = array.shape[:2], array.steps
    if outer == inner == 1:
        return array.shape[2] * array.shape[3]  # it checks even the step that is never taken
    if outer == 1 or inner == 1:
        return steps[1] if inner > 1 else steps[0]
    return steps[1] if steps[0] == inner * steps[1] else None
