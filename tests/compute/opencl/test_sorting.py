"""Sorting ops: stable, NaN as the largest, on both mappings."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.compute import dtype
from tests.compute.opencl.checks import MAPPINGS, on, same

rng = numpy.random.default_rng(0)
X = rng.normal(size=(3, 40, 5)).astype("float32")
KINDS = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


def few(*shape: int, kind: str = "float32") -> Any:
    """Numbers of which many are equal."""
    found = rng.integers(-3, 4, shape)
    return (found > 0 if kind == "bool" else abs(found) if kind == "uint8" else found).astype(
        dtype.dtype(kind)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_equal_numbers_keep_their_order(kind: str) -> None:
    array = few(3, 70, kind=kind)
    for descending in (False, True):
        same("sort.stable", array, stable=True, dim=-1, descending=descending)
    same("sort", few(40, 3, kind=kind), 0)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 512, 513, 3000, 9001])
def test_rows_of_any_length_are_sorted(length: int) -> None:
    same("sort", rng.normal(size=(2, length)).astype("float32"), -1, True)
    same("sort", rng.integers(-(2**62), 2**62, length))


def test_what_is_no_number_comes_last_and_zero_has_no_sign() -> None:
    array = numpy.array([1, numpy.nan, -0.0, 0.0, -numpy.inf, numpy.nan, numpy.inf], "float32")
    same("sort", array)
    same("sort", array, 0, True)
    same("sort", array.astype("float64"))
    same("topk", array, 3)


def test_dimensions_and_layouts() -> None:
    for dim in (0, 1, -1):
        same("sort", X, dim)
        same("sort", X.transpose(2, 0, 1), dim, True)
    same("sort", numpy.array(3, "float32"))
    same("sort", X[:, :0], 1)
    same("sort", X[:0], 1)


@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_the_first_of_an_order(largest: bool) -> None:
    for k in (0, 1, 7, 40):
        same("topk", X, k, 1, largest)
    same("topk", numpy.array(3, "float32"), 1, 0, largest)


def test_one_of_each_row() -> None:
    rows = rng.permutation(120).reshape(3, 40).astype("float32")
    same("kthvalue", rows, 7)
    same("kthvalue", rows, 40, 1, True)
    same("median.dim", rows, 1)
    same("median.dim", rows.astype("int32"), 0, True)
    same("median", rows)
    same("median", rows.astype("int64"))
    same("median", rows[:, :0])
    same("mode", few(5, 33))
    same("mode", few(5, 33, kind="int64"), 0, True)
    same("mode", numpy.array([2**31 - 1, 2**31 - 1, 1], "int32"))


def test_a_median_is_no_number_unless_those_are_skipped() -> None:
    rows = rng.permutation(40).reshape(4, 10).astype("float32")
    rows[1, 3] = rows[2, :4] = rows[3] = numpy.nan
    same("median.dim", rows, 1)
    same("nanmedian.dim", rows, 1)
    same("median", rows)
    same("nanmedian", rows)


@pytest.mark.parametrize("right", [False, True])
def test_where_numbers_belong_in_an_order(right: bool) -> None:
    order = numpy.sort(few(3, 50), -1)
    same("searchsorted.Tensor", order, few(3, 20), right=right)
    same("searchsorted.Tensor", order[0], few(4, 5), right=right, out_int32=True)
    same("searchsorted.Tensor", order[0], few(4, kind="int64"), right=right)
    same("searchsorted.Scalar", order[0], 1.5, right=right)
    same("searchsorted.Scalar", order[0].astype("int64"), 1.5, right=right)
    same("bucketize.Tensor", few(4, 5), order[1], right=right)
    shuffled = numpy.argsort(few(50))
    same("searchsorted.Tensor", order[0], few(4), right=right, sorter=shuffled * 0)
    holes = numpy.array([1, 2, numpy.nan], "float32")
    same("searchsorted.Tensor", holes, holes, right=right)


def test_whether_numbers_are_there() -> None:
    array = numpy.array([[1, 2, numpy.nan], [4, 5, 6]], "float32")
    for invert in (False, True):
        tests = numpy.array([6, 2, numpy.nan, 2], "float32")
        same("isin.Tensor_Tensor", array, tests, invert=invert)
        same("isin.Tensor_Tensor", array, tests[:0], invert=invert)
        same("isin.Tensor_Scalar", array, 5, invert=invert)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_a_few_of_long_rows_keep_their_order_too(mapping: str, kind: str) -> None:
    for shape, k in (((9, 1000), 5), ((20_000,), 50)):
        array = few(*shape, kind=kind)
        values, places = on(mapping, "topk", array, k)
        expected = numpy.argsort(-array, -1, kind="stable")[..., :k]
        numpy.testing.assert_array_equal(places, expected)
        numpy.testing.assert_array_equal(values, numpy.take_along_axis(array, expected, -1))
