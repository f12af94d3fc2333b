"""CLBlast, if installed: float32 matrix products on the same queue.

Optional, and used only for sizes at which the tuner measured it faster (`tuned_parameters`). The
engine's own kernels compute what it cannot do.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from typing import Any

import pyopencl as cl

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.runtime import late_builds
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine

_NAMES = ("libclblast.so.1", "libclblast.so", "clblast.dll", "libclblast.dylib")
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112
_ARRAYS = 3
_SIZE, _FLOAT, _POINTER, _INT = ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p, ctypes.c_int


def is_available() -> bool:
    """Whether it is installed and enabled. Raises BadInput for an unknown setting."""
    wanted = Config.load().clblast
    if wanted not in ("auto", "off"):
        raise BadInput(f"HOLDFAST_CLBLAST is {wanted!r}", expected="auto or off")
    return wanted == "auto" and _library() is not None


@functools.cache
def _library() -> Any:
    found = ctypes.util.find_library("clblast")
    for name in (*_NAMES, *([found] if found else [])):
        try:
            library = ctypes.PyDLL(name)  # keeps the GIL: see `late_builds`
        except OSError:  # not installed, or without an OpenCL loader
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
    engine: CLEngine, a: Array, b: Array, out: Array, c: Array | None, alpha: Any, beta: Any
) -> bool:
    """out = alpha * a @ b + beta * c; False if that was not done."""
    if out.dtype != dtypes.FLOAT32 or not is_available():
        return False
    laid = [found for found in map(_matrix_layout, (a, b, out)) if found is not None]
    steps = [found for found in map(_batch_step, (a, b, out)) if found is not None]
    if len(laid) < _ARRAYS or len(steps) < _ARRAYS or laid[2][0] == _TRANSPOSED:
        return False
    if c is not None:
        engine.write(out, c)
    alpha, beta = float(alpha), float(beta) if c is not None else 0.0
    with engine.place.lock:
        # Neither evicted memory nor shared virtual memory.
        if not all(isinstance(x.memory.buffer, cl.Buffer) for x in (a, b, out)):
            return False
        (m, k), n = a.shape[2:], b.shape[3]
        given = []
        for x, (_, length), step in zip((a, b, out), laid, steps, strict=True):
            at = (x.memory.start + x.offset) // x.itemsize
            given.append((x.memory.buffer.int_ptr, at, length, step))
        queue = _POINTER(engine.place.queue.int_ptr)
        arguments = (
            _ROW_MAJOR, laid[0][0], laid[1][0], m, n, k, alpha, *given[0], *given[1], beta,
            *given[2], a.shape[0] * a.shape[1], ctypes.byref(queue), None,
        )  # fmt: skip
        multiply = functools.partial(_library().CLBlastSgemmStridedBatched, *arguments)
        if late_builds.builds_late(engine.place.device):
            return late_builds.finish_at_once(engine.place, multiply) == 0
        return multiply() == 0


def _matrix_layout(array: Array) -> tuple[int, int] | None:
    """Whether a matrix is stored by rows or by columns, and the distance between them."""
    (rows, columns), (down, across) = array.shape[2:], array.steps[2:]
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return _AS_IT_IS, max(down, columns)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return _TRANSPOSED, max(across, rows)
    return None


def _batch_step(array: Array) -> int | None:
    """The step between the matrices of a batch; None if it varies."""
    (outer, inner), steps = array.shape[:2], array.steps
    if outer == inner == 1:
        return array.shape[2] * array.shape[3]  # CLBlast checks the step even if it is never taken
    if outer == 1 or inner == 1:
        return steps[1] if inner > 1 else steps[0]
    return steps[1] if steps[0] == inner * steps[1] else None
