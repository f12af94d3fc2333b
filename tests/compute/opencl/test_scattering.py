"""Scatter with repeated indices: against the NumPy engine, and deterministic."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import dtype
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import MAPPINGS, on, same, up
from tests.compute.opencl.checks import engine as engine_of

rng = numpy.random.default_rng(0)
X = rng.normal(size=(4, 5, 6)).astype("float32")
ROWS = numpy.array([3, 0, 3, 3, 1])  # one of them several times
ONCE = numpy.array([3, 0, 1])
MASK = rng.random((4, 5)) > 0.5
KINDS = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]


def values(*shape: int, kind: str = "float32") -> Any:
    found = rng.normal(size=shape) * 3
    return (found > 0 if kind == "bool" else numpy.abs(found)).astype(dtype.dtype(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_meets_at_one_place_is_added(kind: str) -> None:
    x = values(4, 5, 6, kind=kind)
    same("index_put", x, [ROWS], values(5, 5, 6, kind=kind), True)
    same("index_put", x, [None, ROWS, None], values(1, 5, 6, kind=kind), True)
    same("index_add", x, 1, ROWS, values(4, 5, 6, kind=kind))
    same("scatter_add", x, 2, rng.integers(0, 6, (4, 3, 6)), values(4, 5, 7, kind=kind))


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_has_all_its_ways(reduce: str, include_self: bool) -> None:
    index = rng.integers(0, 4, (3, 5, 6))
    given = (X, 0, index, values(3, 5, 6), reduce)
    same("scatter_reduce.two", *given, include_self=include_self)
    whole = (values(4, 5, 6, kind="int64"), 0, index, -values(3, 5, 6, kind="int64"), reduce)
    same("scatter_reduce.two", *whole, include_self=include_self)
    if reduce != "sum":
        same("index_reduce", X, 1, ROWS, values(4, 5, 6), reduce, include_self=include_self)


def test_no_number_is_passed_on_by_the_largest_and_the_smallest() -> None:
    given = numpy.array([1, numpy.nan, 2, 5], "float32")
    index = numpy.array([0, 0, 0, 1])
    for reduce in ("amax", "amin"):
        same("scatter_reduce.two", X[0, 0, :2], 0, index, given, reduce)


def test_numbers_are_written_where_indices_say() -> None:
    same("index_put", X, [ONCE], values(3, 5, 6))
    same("index_put", X, [ONCE, None, ONCE], values(3, 5))
    same("index_put", X, [MASK], values(6))
    same("index_put", X, [MASK], numpy.array(3, "float32"))
    same("index_put", X, [None, None, None], values(6))
    same("index_put", X.transpose(2, 0, 1), [None, ONCE], values(6, 3, 5))
    same("index_fill.int_Scalar", X, 1, -ONCE, 7)
    same("index_fill.int_Tensor", X, 1, ONCE, numpy.array(2, "float32"))
    same("index_copy", X, 2, ONCE, values(4, 5, 3))
    same("put", X, numpy.array([[0, -1], [7, 8]]), values(4))
    same("put", X, numpy.array([[0, 0], [7, 0]]), values(4), True)
    same("scatter.src", X, 0, numpy.array([[[1, 0]], [[2, 1]]]), values(2, 1, 2))
    same("scatter.value", X, 1, numpy.zeros((4, 1, 6), "int64"), 5)
    same("scatter.value_reduce", X, 1, ROWS.reshape(1, 5, 1), 2, reduce="multiply")
    same("masked_scatter", X, MASK[:, :, None], values(5, 24))
    same("masked_scatter_backward", X, MASK[:, :, None], [200])


def test_complex_numbers_are_written_too() -> None:
    array = X.view("complex64")
    same("index_put", array, [ONCE], array[:3] * 2)
    same("index_fill.int_Scalar", array, 2, numpy.array([1]), 1 + 2j)


def test_nothing_is_written_for_no_index() -> None:
    none = numpy.zeros(0, "int64")
    same("index_add", X, 0, none, X[:0])
    same("index_put", X, [none], X[:0], True)
    same("scatter_add", X, 0, none.reshape(0, 5, 6), X)
    same("index_copy", X, 0, none, X[:0])


def test_in_place_the_array_itself_is_changed() -> None:
    for mapping in MAPPINGS:
        there = engine_of(mapping)
        array = there.upload(X)
        part = array.view(array.dtype, (4, 6), (120, 4), 24)
        args = [part, [up(mapping, ROWS)], up(mapping, values(6)), True]
        out = run(OPS["_index_put_impl_"], there, args, {})
        assert out is part
        expected = X.copy()
        numpy.add.at(expected[:, 1], ROWS, there.download(args[2]))
        numpy.testing.assert_allclose(there.download(array), expected, rtol=1e-5)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_sums_are_the_same_every_time(mapping: str) -> None:
    index, given = rng.integers(0, 9, 5000), values(5000)
    found = [on(mapping, "index_add", X[0, 0], 0, index % 6, given) for _ in range(3)]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_very_many_floats_are_added_in_any_order() -> None:
    index, given = rng.integers(0, 50, 70_000), values(70_000)
    same("scatter_add", numpy.zeros(50, "float32"), 0, index, given, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("index_put", (X, [numpy.array([4])], X[:1])),
        ("index_put", (X, [ONCE], X[:2], True)),
        ("index_put", (X, [ONCE], X[:3].astype("float64"))),
        ("index_add", (X, 0, ROWS, X)),
        ("index_add", (X, 0, numpy.array([-1]), X[:1])),
        ("index_copy", (X, 0, ONCE, X[:3].astype("int64"))),
        ("index_fill.int_Scalar", (X, 0, ONCE, 1j)),
        ("scatter.src", (X, 0, numpy.full((1, 5, 6), 4), X)),
        ("scatter.src", (X, 0, numpy.zeros((5, 5, 6), "int64"), X)),
        ("put", (X, ONCE, X)),
        ("masked_scatter", (X, MASK[:, :, None], X[0, 0])),
        ("scatter_reduce.two", (X, 0, numpy.zeros((1, 1, 1), "int64"), X, "most")),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_numpy(name: str, args: Any) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    with pytest.raises(BadInput) as found:
        run(OPS[name], engine_of("cpu"), [up("cpu", a) for a in args], {})
    assert str(found.value) == str(expected.value)


def test_numbers_are_counted() -> None:
    given = rng.integers(0, 9, 300)
    same("bincount", given)
    same("bincount", given.astype("int32"), None, 20)
    same("bincount", given, rng.normal(size=300).astype("float32"), rtol=1e-4)
    same("bincount", given[:0], None, 3)
