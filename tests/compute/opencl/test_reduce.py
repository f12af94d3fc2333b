"""Reductions on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import MAPPINGS, engine, on, same, up

pytestmark = pytest.mark.opencl
BFLOAT16 = dtypes.DTYPES["bfloat16"]


def floats(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


@pytest.mark.parametrize("dim", [[0], [1], [2], [0, 1], [0, 2], [-1, -2], [0, 1, 2], [], None])
def test_sums_over_any_dimensions(dim: Any) -> None:
    same("sum.dim_IntList", floats(7, 33, 65), dim, atol=1e-4)
    same("mean.dim", floats(7, 33, 65), dim, True)


@pytest.mark.parametrize("dim", [[0], [1], [2], [0, 2]])
def test_strided_arrays_are_reduced_where_they_are(dim: Any) -> None:
    whole = floats(6, 40, 70)
    same("sum.dim_IntList", whole.transpose(2, 0, 1), dim, atol=1e-4)
    same("sum.dim_IntList", whole[::2, 3:, ::3], dim, atol=1e-4)
    same("amax", numpy.broadcast_to(whole[:, :1], whole.shape), dim)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("dim", [None, [0], [1]])
def test_sum_of_millions_of_floats_is_as_exact_as_float64(mapping: str, dim: Any) -> None:
    values = numpy.full((2048, 1025), 0.1, numpy.float32)
    values[::3] = numpy.random.default_rng(0).random((683, 1025), numpy.float32)
    exact = values.sum(None if dim is None else dim[0], dtype=numpy.float64)
    found = on(mapping, "sum.dim_IntList", values, dim)
    assert numpy.abs(found / exact - 1).max() < 5e-7


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "bool", "float64", "bfloat16"])
def test_dtypes_are_reduced_as_torch_does_it(kind: str) -> None:
    values = (floats(9, 130) * 5).astype(dtypes.DTYPES[kind])
    same("sum.dim_IntList", values, [0], atol=1e-3)
    same("amin", values)
    same("max.dim", values, 1)


@pytest.mark.parametrize("name", ["any", "all", "count_nonzero", "argmin", "prod"])
def test_integers_are_reduced_too(name: str) -> None:
    same(name, (floats(3, 13) * 5).astype(numpy.int32))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_large_integers_are_added_exactly(mapping: str) -> None:
    values = numpy.random.default_rng(0).integers(-(2**60), 2**60, 100_003)
    assert on(mapping, "sum", values) == values.sum()


def test_a_dtype_may_be_named() -> None:
    same("sum", floats(9, 130), dtype="float64")
    same("sum", numpy.arange(100), dtype="float32")
    same("mean", numpy.arange(100), dtype="float32")
    same("prod", numpy.array([1.7, 2.9], numpy.float32), dtype="int64")


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "max", "min", "argmax", "argmin", "prod"])
def test_nan_wins(name: str) -> None:
    values = floats(300)
    values[[17, 41]] = math.nan
    same(name, values)
    same(name, numpy.array([math.inf, -math.inf, math.nan], numpy.float32))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_places_are_the_first_of_equals(dim: int) -> None:
    values = numpy.random.default_rng(0).integers(0, 3, (50, 70)).astype(numpy.float32)
    for name in ("max.dim", "min.dim", "argmax", "argmin"):
        same(name, values, dim)
        same(name, values.T, dim, True)
    same("argmax", values.T)
    same("argmax", numpy.zeros(200_000, numpy.float32))


def test_arrays_without_dimensions_and_without_numbers() -> None:
    scalar = numpy.array(3, numpy.float32)
    for name in ("sum", "mean", "prod", "max", "argmax", "any", "count_nonzero", "std.correction"):
        same(name, scalar)
    same("max.dim", scalar, 0)
    same("sum.dim_IntList", numpy.empty((0, 3), numpy.float32), [0])
    same("sum.dim_IntList", numpy.empty((0, 3), numpy.float32), [1])
    same("mean", numpy.empty(0, numpy.float32))
    same("prod", numpy.empty(0, numpy.float32))
    same("all", numpy.empty(0, bool))
    same("logsumexp", numpy.empty((3, 0), numpy.float32), [1])


def test_an_extreme_of_nothing_is_refused_as_numpy_refuses_it() -> None:
    values = numpy.empty((0, 3), numpy.float32)
    said = []
    for there in (ENGINES["numpy"], engine("cpu")):
        with pytest.raises(BadInput) as caught:
            run(OPS["amax"], there, [there.upload(values), [0]], {})
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("dim", [None, [0], [1], [0, 2]])
def test_moments(dim: Any) -> None:
    values = floats(5, 60, 8) + 100
    for name in ("var_mean.correction", "std_mean.correction", "var.correction", "std.correction"):
        same(name, values, dim, rtol=1e-4)
        same(name, values, dim, correction=0, keepdim=True, rtol=1e-4)
    same("var.dim", values.astype(BFLOAT16), [1], False)
    same("var.correction", numpy.ones((1, 3), numpy.float32), [0])


def test_logsumexp_does_not_overflow() -> None:
    values = floats(6, 50) * 300
    values[1] = -math.inf
    values[2, 4] = math.inf
    same("logsumexp", values, [1])
    same("logsumexp", values, [0, 1], True)
    same("logsumexp", numpy.arange(12).reshape(3, 4), [0])


def test_truth_and_counts() -> None:
    values = numpy.random.default_rng(0).integers(0, 2, (40, 50))
    for name in ("any.dim", "all.dim"):
        same(name, values, 1)
        same(name, values.astype(numpy.uint8), 0, True)
    for name in ("any.dims", "all.dims"):
        same(name, values, [])
        same(name, values, [0, 1])
    same("count_nonzero.dim_IntList", values, [0])
    same("nansum", numpy.array([1, math.nan, 2], numpy.float32))
    same("aminmax", floats(4, 9), dim=1, keepdim=True)
    same("aminmax", floats(4, 9))


def test_equality_is_a_python_bool() -> None:
    one = floats(30, 31)
    other = one.copy()
    same("equal", one, other)
    same("allclose", one, other * numpy.float32(1 + 1e-6))
    other[3, 4] += 1
    same("equal", one, other)
    same("equal", one, one[:3])
    same("allclose", one, other)
    same(
        "allclose",
        numpy.array([math.nan, math.inf]),
        numpy.array([math.nan, math.inf]),
        equal_nan=True,
    )


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
def test_norms_of_any_order(p: float) -> None:
    values = floats(5, 17, 9)
    same("linalg_vector_norm", values, p)
    same("linalg_vector_norm", values, p, [0, 2], True)
    same("norm.ScalarOpt_dim", values.astype(numpy.float16), p, [1])
    same("dist", values, floats(5, 17, 9, seed=1), p)


def test_renorm_shortens_long_rows() -> None:
    same("renorm", floats(5, 17, 9), 2, 1, 3.0)


def test_the_gradient_of_a_choice_goes_to_its_place() -> None:
    values = floats(4, 5, 6)
    for dim in range(3):
        places = values.argmax(dim)
        grad = floats(*places.shape, seed=2)
        name = "value_selecting_reduction_backward"
        same(name, grad, dim, places, [4, 5, 6], False)
        same(
            name, numpy.expand_dims(grad, dim), dim, numpy.expand_dims(places, dim), [4, 5, 6], True
        )


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_reduction_queues_without_waiting_and_keeps_its_input(mapping: str) -> None:
    values = floats(300, 301)
    there = up(mapping, values)
    run(OPS["sum"], engine(mapping), [there], {})
    numpy.testing.assert_array_equal(engine(mapping).download(there), values)
