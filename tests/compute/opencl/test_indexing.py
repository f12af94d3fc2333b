"""Reading by indices and masks: the NumPy engine's results and errors, on both mappings."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import MAPPINGS, same, up
from tests.compute.opencl.checks import engine as engine_of

rng = numpy.random.default_rng(0)
X = rng.normal(size=(4, 5, 6)).astype("float32")
K = numpy.array([2, -1, 0])
J = numpy.array([[1], [-5]])
MASK = rng.random((4, 5)) > 0.5
LONG = rng.integers(0, 4, 20_000)  # more than is looked at on the host


@pytest.mark.parametrize(
    "indices",
    [
        [K],
        [None, K],
        [K, J],
        [None, K, K],
        [K, None, J],
        [K.astype("int32"), None, None],
        [MASK],
        [None, rng.random((5, 6)) > 0.3],
        [None, None, rng.random(6) > 0.3],
        [MASK[:, 0], None, numpy.array(2)],
        [numpy.zeros((4, 5), bool)],
        [numpy.array(1), numpy.array(-2), numpy.array(3)],
        [numpy.zeros((2, 0), "int64")],
        [LONG],
        [None, None, None],
    ],
)
def test_an_index_list_chooses_what_numpy_chooses(indices: Any) -> None:
    same("index.Tensor", X, indices)


@pytest.mark.parametrize(
    "kind", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"]
)
def test_numbers_of_every_dtype_can_be_chosen(kind: str) -> None:
    from holdfast.compute import dtype

    array = (X * 9).astype(dtype.dtype(kind))
    same("index.Tensor", array.transpose(2, 0, 1), [None, K])
    same("index_select", array, 1, numpy.array([4, 4, 0]))
    same("masked_select", array, MASK[:, :, None])
    same("take", array, numpy.array([[0, -1], [7, 119]]))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_takes_a_corner_of_the_other_dimensions(dim: int) -> None:
    index = rng.integers(0, 4, (3, 4, 5))
    same("gather", X, dim, index)
    same("gather", X.transpose(1, 0, 2), dim, index)
    same("gather", X, dim, index[:0])
    same("gather", numpy.array(3, "float32"), 0, numpy.array([0, 0]))
    same("gather", X[:, 0, 0], 0, LONG)


@pytest.mark.parametrize("kind", ["bool", "float32", "int64"])
def test_nonzero_lists_places_in_order(kind: str) -> None:
    array = (X > 0.5).astype(kind)
    same("nonzero", array)
    same("nonzero", array.transpose(2, 0, 1))
    same("nonzero", (rng.random(30_000) > 0.9).astype(kind))
    same("nonzero", numpy.array(array[0, 0, 0]))
    same("nonzero", array[:0])
    same("nonzero_static", array, 7)
    same("nonzero_static", array, 200, -3)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("index.Tensor", (X, [numpy.array([0, 4])])),
        ("index.Tensor", (X, [None, numpy.array([-6])])),
        ("index.Tensor", (X, [numpy.append(LONG, 4)])),
        ("index.Tensor", (X, [MASK.T])),
        ("index.Tensor", (X, [K, numpy.zeros(2, "int64")])),
        ("index.Tensor", (X, [K, K, K, K])),
        ("index.Tensor", (X, [numpy.zeros(2, "float32")])),
        ("index_select", (X, 1, numpy.array([0, -1]))),
        ("index_select", (X, 1, J)),
        ("gather", (X, 2, numpy.full((4, 5, 6), 6))),
        ("gather", (X, 2, numpy.zeros((5, 5, 6), "int64"))),
        ("gather", (X, 0, numpy.zeros((4, 5, 6), "float32"))),
        ("take", (X, numpy.array([120]))),
    ],
)
def test_an_index_that_is_not_there_is_refused_in_the_words_of_numpy(name: str, args: Any) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    for mapping in MAPPINGS:
        with pytest.raises(BadInput) as found:
            run(OPS[name], engine_of(mapping), [up(mapping, a) for a in args], {})
        assert str(found.value) == str(expected.value)
