"""The C loops of the NumPy engine (`native/`): compiles them on first use and declares signatures.

Without a compiler, or with HOLDFAST_CORE=python, the engine computes the same with NumPy alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import HoldfastError
from holdfast.memory.core import native_build

_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math")
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_THREE = _INT * 3

Signatures = Mapping[str, tuple[Any, tuple[Any, ...]]]  # function name -> (result, arguments)


class Window(ctypes.Structure):
    """`Window` of kernels.c."""

    _fields_ = (
        *((name, kind) for name, kind in (("x_steps", _THREE), ("x_channel", _INT))),
        *((name, _THREE) for name in ("sizes", "stride", "origin", "grid")),
        *((name, _INT) for name in ("channels", "planes")),
        ("phase", _POINTER),
        ("depth", _INT),
        ("plane", _POINTER),
        ("shift", _POINTER),
        ("outputs", _INT),
        ("high", _INT),
        ("out_sizes", _THREE),
        ("out_steps", _THREE),
        *((name, _INT) for name in ("out_channel", "reach", "chunk")),
    )


class Heads(ctypes.Structure):
    """`Heads` of kernels.c."""

    _fields_ = (
        *((name, _INT) for name in ("keys", "width", "depth", "q_row", "q_column", "out_row")),
        *((name, _INT) for name in ("mask_row", "mask_column", "causal")),
        ("factor", ctypes.c_float),
    )


SIGNATURES: Signatures = {
    "holdfast_high": (_INT, ()),
    "holdfast_scratch": (_INT, (_POINTER, _INT)),
    "holdfast_convolve": (None, (*[_POINTER] * 5, *[_INT] * 4, _POINTER)),
    "holdfast_pack": (None, (_POINTER, *[_INT] * 5, _POINTER)),
    "holdfast_attention_scratch": (_INT, (_POINTER,)),
    "holdfast_chain_scratch": (_INT, (_INT, _INT)),
    "holdfast_chain": (
        None,
        (_POINTER, _INT, _POINTER, _INT, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER),
    ),
    "holdfast_attention": (None, (*[_POINTER] * 7, *[_INT] * 2, _POINTER)),
}


@functools.cache
def kernels() -> Any:
    """The loops of kernels.c, or None if they cannot be compiled."""
    return load("kernels.c", SIGNATURES)


def load(name: str, signatures: Signatures) -> Any:
    """Compile and load a file of native/. None if that fails.

    Raises Unsupported instead of returning None with HOLDFAST_CORE=compiled.
    """
    chosen = Config.load().core
    if chosen == "python":
        return None
    try:
        return load_for(name, signatures, ("-march=native", _processor()))
    except (HoldfastError, OSError):
        if chosen == "compiled":
            raise
        return None


def load_for(name: str, signatures: Signatures, flags: Sequence[str]) -> Any:
    """`load` for the processor that these compiler flags name.

    Raises Unsupported if it cannot be compiled, OSError if it cannot be loaded.
    """
    source = Path(__file__).parent / "native" / name
    found: Any = ctypes.CDLL(str(native_build.library(str(source), (*_FLAGS, *flags))))
    for function_name, (result, arguments) in signatures.items():
        function = getattr(found, function_name)
        function.restype, function.argtypes = result, arguments
    return found


def _processor() -> str:
    """A compiler flag that differs by processor, so that machines can share a cache of builds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    about = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    digest = hashlib.sha256("".join(sorted(set(about or lines))).encode()).hexdigest()[:12]
    return f"-DHOLDFAST_PROCESSOR={digest}"
