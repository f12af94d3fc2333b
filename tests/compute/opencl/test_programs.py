"""Kernels from source, and their binaries on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.compute.engines.opencl import OpenCLEngine
from holdfast.compute.engines.opencl.runtime.programs import Programs

FILL = """__kernel void fill(__global uchar *x_, ulong x_at) {
    AT(float, x)[get_global_id(0)] = VALUE;
}"""


@pytest.fixture
def engine() -> OpenCLEngine:
    return OpenCLEngine(0)


def filled(engine: OpenCLEngine, value: Any) -> list[float]:
    array = engine.alloc((3,), numpy.dtype(numpy.float32))
    kernel = engine.programs.build(FILL, "fill", {"VALUE": value})
    engine.launch(kernel, (3,), None, array)
    return engine.download(array).tolist()


def test_defines_make_another_kernel_of_the_same_text(engine: OpenCLEngine, own_cache: Path):
    assert [filled(engine, 1), filled(engine, 2.5)] == [[1.0] * 3, [2.5] * 3]
    assert len(list(own_cache.iterdir())) == 2


def test_a_program_is_built_once(engine: OpenCLEngine, monkeypatch: pytest.MonkeyPatch):
    assert filled(engine, 7) == [7.0] * 3
    monkeypatch.setattr(Programs, "_load_or_build", None)
    assert filled(engine, 7) == [7.0] * 3


def test_another_process_begins_with_the_binary(
    engine: OpenCLEngine, own_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    assert filled(engine, 3) == [3.0] * 3

    def refuse(*_: Any) -> None:
        raise AssertionError("it was built from its source again")

    monkeypatch.setattr(Programs, "_from_source", refuse)
    assert filled(OpenCLEngine(0), 3) == [3.0] * 3


def test_a_binary_is_for_one_driver_alone(
    engine: OpenCLEngine, own_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    assert filled(engine, 3) == [3.0] * 3
    other = OpenCLEngine(0)
    other.programs._identity += " and a newer driver"
    assert filled(other, 3) == [3.0] * 3
    assert len(list(own_cache.iterdir())) == 2


def test_what_numbers_are_in_c_is_in_front_of_every_text(engine: OpenCLEngine):
    text = """__kernel void widen(__global uchar *x_, ulong x_at, __global uchar *y_, ulong y_at) {
        AT(float, y)[0] = LOAD_float16(CAT(TYPE_float16, x), 0);
    }"""
    half = engine.upload(numpy.array([1.5], numpy.float16))
    wide = engine.alloc((1,), numpy.dtype(numpy.float32))
    engine.launch(engine.programs.build(text, "widen"), (1,), None, half, wide)
    assert engine.download(wide).tolist() == [1.5]


def test_the_device_says_whether_it_has_float64(engine: OpenCLEngine):
    text = """__kernel void known(__global uchar *x_, ulong x_at) {
    #ifdef HAS_DOUBLE
        AT(float, x)[0] = 1;
    #else
        AT(float, x)[0] = 0;
    #endif
    }"""
    found = engine.alloc((1,), numpy.dtype(numpy.float32))
    engine.launch(engine.programs.build(text, "known"), (1,), None, found)
    assert bool(engine.download(found)[0]) is engine.has_double
