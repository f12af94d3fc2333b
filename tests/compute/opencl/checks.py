"""An op on the OpenCL engine held against the NumPy engine, in both mappings of its kernels."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import ml_dtypes
import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import random
from holdfast.compute.engine import ENGINES, each, run, strict
from holdfast.compute.engines.opencl import OpenCLEngine
from holdfast.compute.engines.opencl.engine import MAPPINGS
from holdfast.compute.ops import OPS
from tests.needs import ALL


@functools.cache
def engine(mapping: str, index: int = 0) -> OpenCLEngine:
    """An engine whose kernels are laid out for CPUs or for GPUs, whatever the device is."""
    made = OpenCLEngine(index)
    made.mapping = mapping
    return made


def up(mapping: str, value: Any) -> Any:
    """An argument on the device; views that stride keep their strides."""
    return each(value, functools.partial(_uploaded, engine(mapping)))


def _uploaded(there: OpenCLEngine, array: Any) -> Any:
    if not isinstance(array, numpy.ndarray):
        return array
    if not array.size or array.flags.c_contiguous:
        return there.upload(array)
    low, high = numpy.lib.array_utils.byte_bounds(array)
    # The elements between the strides do not belong to the array and must not matter.
    whole = numpy.full(high - low, 0xAB, numpy.uint8)
    start = array.__array_interface__["data"][0] - low
    numpy.ndarray(array.shape, array.dtype, whole, start, array.strides)[...] = array
    made = there.upload(whole)
    return made.view(dtypes.dtype(array.dtype), array.shape, array.strides, made.offset + start)


def on(mapping: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """What the OpenCL engine makes of arrays of the host, as arrays of the host."""
    there = engine(mapping)
    random.manual_seed(0)
    named = {key: up(mapping, value) for key, value in kwargs.items()}
    out = run(OPS[name], there, [up(mapping, a) for a in args], named)
    return each(out, there.download)


def same(
    name: str,
    *args: Any,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    native: bool = True,
    mappings: tuple[str, ...] | None = None,
    **kwargs: Any,
) -> Any:
    """Check that an op has the same results on both engines; returns those of NumPy.

    `mappings`: both under `make test-all`; else the arguments choose one, as building takes long.

    `native`: leaving it to the host is a failure. Tolerances are for wide floats; the narrow ones
    may be off by one rounding. All that is not a float has to be equal.
    """
    random.manual_seed(0)
    expected = run(OPS[name], ENGINES["numpy"], list(args), dict(kwargs))
    for mapping in mappings or (MAPPINGS if ALL else _choose(name, args)):
        with strict(native):
            found = on(mapping, name, *args, **kwargs)
        close(found, expected, f"{name} ({mapping})", rtol, atol)
    return expected


def _choose(name: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    """One of the mappings: always the same for the same op, shapes and dtypes."""
    kinds = [(a.dtype.str, a.shape) if isinstance(a, numpy.ndarray) else type(a) for a in args]
    return (MAPPINGS[zlib.crc32(f"{name} {kinds}".encode()) % len(MAPPINGS)],)


def close(found: Any, expected: Any, where: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Raises AssertionError unless shapes, dtypes and values are the same."""
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            close(one, other, f"{where}[{place}]", rtol, atol)
        return
    if not hasattr(expected, "dtype"):
        assert found == expected, where
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
    if not dtypes.is_floating(expected.dtype) and expected.dtype.kind != "c":
        numpy.testing.assert_array_equal(found, expected, where)
        return
    if expected.dtype.itemsize < 4:
        rtol = max(rtol, 2 * float(ml_dtypes.finfo(expected.dtype).eps))
        found, expected = found.astype(numpy.float32), expected.astype(numpy.float32)
    numpy.testing.assert_allclose(found, expected, rtol, atol, err_msg=where)
