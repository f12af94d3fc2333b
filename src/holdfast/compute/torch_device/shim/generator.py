"""The generator of the C++ shim, for code that draws in Python: both draw from one stream."""

from __future__ import annotations

import ctypes
import threading
from numbers import Integral
from typing import Any

import numpy

from holdfast.compute import random

_WORDS = 624


class _State(ctypes.Structure):
    """`State` of native/device.cpp."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("normal", ctypes.c_double),
        ("has_normal", ctypes.c_int32),
        ("position", ctypes.c_int32),
        ("words", ctypes.c_uint32 * _WORDS),
    )


class ShimGenerator(random.Generator):
    """A generator whose state is in the shim."""

    def __init__(self, library: Any) -> None:
        self._lock = threading.RLock()
        self._library = library
        self._next_normal = None  # used within `normals` alone

    def manual_seed(self, seed: int) -> random.Generator:
        if not isinstance(seed, Integral) or not -(1 << 63) <= seed < 1 << 64:
            return super().manual_seed(seed)  # raises
        with self._lock:
            self._library.hf_device_seed(ctypes.c_uint64(int(seed) % (1 << 64)))
        return self

    def initial_seed(self) -> int:
        return self._read().seed

    def get_state(self) -> dict[str, Any]:
        state = self._read()
        return {
            "key": numpy.frombuffer(state.words, numpy.uint32).copy(),
            "position": state.position,
            "next_normal": state.normal if state.has_normal else None,
            "seed": state.seed,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        checked = random.Generator()
        checked.set_state(state)  # raises for an invalid state
        made, found = _State(), checked.get_state()
        made.seed, made.position = found["seed"], found["position"]
        made.normal, made.has_normal = found["next_normal"] or 0.0, found["next_normal"] is not None
        made.words[:] = found["key"].tolist()
        with self._lock:
            self._library.hf_device_set_state(ctypes.byref(made))

    def bits32(self, count: int) -> Any:
        found = numpy.empty(count, numpy.uint32)
        with self._lock:
            self._library.hf_device_bits32(ctypes.c_void_p(found.ctypes.data), count)
        return found

    def normals(self, count: int) -> Any:
        with self._lock:
            self._next_normal = self.get_state()["next_normal"]
            found = super().normals(count)
            self.set_state({**self.get_state(), "next_normal": self._next_normal})
            return found

    def _read(self) -> _State:
        state = _State()
        with self._lock:
            self._library.hf_device_get_state(ctypes.byref(state))
        return state


def install(library: Any) -> None:
    """Make the shim's generator the default one, with the state of ours."""
    library.hf_device_bits32.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    shared = ShimGenerator(library)
    shared.set_state(random.get_state())
    random.default_generator = shared
