"""Running sums and extremes on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from holdfast.compute import dtype as dtypes
from tests.compute.opencl.checks import same

pytestmark = pytest.mark.opencl


def floats(*shape: int) -> Any:
    return numpy.random.default_rng(0).standard_normal(shape).astype(numpy.float32)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dimension_of_any_layout(name: str, dim: int) -> None:
    same(name, floats(5, 40, 7), dim)
    same(name, floats(7, 5, 40).transpose(1, 2, 0), dim)
    same(name, floats(5, 80, 14)[:, ::2, ::2], dim)


@pytest.mark.parametrize("name", ["cumsum", "cummax", "cummin", "logcumsumexp"])
def test_lines_longer_than_a_work_group(name: str) -> None:
    same(name, floats(3, 1500), 1)
    same(name, numpy.random.default_rng(0).integers(0, 4, 1500).astype(numpy.float32), 0)


@pytest.mark.parametrize("kind", ["int8", "int32", "bool", "float64", "float16"])
def test_dtypes_are_those_of_torch(kind: str) -> None:
    values = (floats(4, 300) * 2).astype(dtypes.DTYPES[kind])
    for name in ("cumsum", "cummax", "cummin"):
        same(name, values, 1, atol=1e-2)
    same("cumprod", values, 0)


def test_a_dtype_may_be_named() -> None:
    same("cumsum", floats(4, 30), 1, dtype="float64")
    same("cumsum", numpy.arange(30), 0, dtype="float32")
    same("cumsum", floats(30) * 5, 0, dtype="int64")


def test_nan_and_infinity_are_carried() -> None:
    values = floats(2, 400)
    values[0, [30, 350]] = math.nan
    values[1, 3:9] = -math.inf
    values[1, 300] = math.inf
    for name in ("cumsum", "cummax", "cummin", "logcumsumexp"):
        same(name, values, 1)
    same("logcumsumexp", numpy.full(5, -math.inf, numpy.float32), 0)


def test_nothing_and_single_numbers() -> None:
    for name in ("cumsum", "cummax", "logcumsumexp"):
        same(name, numpy.array(2, numpy.float32), 0)
        same(name, numpy.empty((0, 3), numpy.float32), 1)
