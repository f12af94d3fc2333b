"""Softmax on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from holdfast.compute import dtype as dtypes
from tests.compute.opencl.checks import same

pytestmark = pytest.mark.opencl
NAMES = ("_softmax", "_log_softmax")


def floats(*shape: int, seed: int = 0) -> Any:
    return 3 * numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 3, 10, 64, 130, 1000, 5001])
def test_rows_of_any_length(name: str, width: int) -> None:
    same(name, floats(5, width), -1, False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [0, 1, 2, -2])
def test_any_dimension_of_any_layout(name: str, dim: int) -> None:
    same(name, floats(4, 30, 21), dim, False)
    same(name, floats(21, 4, 30).transpose(1, 2, 0), dim, False)
    same(name, floats(4, 30, 44)[:, :, 1::2], dim, False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_other_dtypes(name: str, kind: str) -> None:
    same(name, floats(4, 32).astype(dtypes.DTYPES[kind]), 1, False)
    same(name, floats(4, 32).astype(dtypes.DTYPES[kind]), 0, False)


def test_half_may_become_float() -> None:
    same("_softmax", floats(4, 31).astype(numpy.float16), 1, True)


@pytest.mark.parametrize("name", [*NAMES, "_safe_softmax"])
def test_infinities_and_nan_stay_in_their_row(name: str) -> None:
    values = floats(5, 40)
    values[0, 3] = math.nan
    values[1] = -math.inf
    values[2, 5:] = -math.inf
    values[3, 7] = math.inf
    same(name, values, 1)
    same(name, values.T, 0)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_and_single_numbers(name: str) -> None:
    same(name, numpy.empty((0, 3), numpy.float32), 1, False)
    same(name, numpy.empty((3, 0), numpy.float32), 1, False)
    same(name, numpy.array(2, numpy.float32), 0, False)


@pytest.mark.parametrize("name", [f"{name}_backward_data" for name in NAMES])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients(name: str, dim: int) -> None:
    values = floats(4, 30, 21)
    shares = numpy.exp(values) / numpy.exp(values).sum(dim, keepdims=True)
    out = shares if name.startswith("_softmax") else numpy.log(shares)
    same(name, floats(4, 30, 21, seed=1), out, dim, "float32", atol=1e-5)
    half = (a.astype(numpy.float16) for a in (floats(4, 30, 21, seed=1), out))
    same(name, *half, dim, "float16", atol=1e-2)
