"""Embeddings, embedding bags and their gradients, against the NumPy engine."""

from __future__ import annotations

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, same

rng = numpy.random.default_rng(0)
TABLE = rng.normal(size=(10, 6)).astype("float32")
PLACES = rng.integers(0, 10, (4, 7))


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_rows_are_looked_up_and_get_their_gradients(kind: str) -> None:
    rows = same("embedding", TABLE.astype(kind), PLACES)
    for padding in (-1, 3):
        for scaled in (False, True):
            same("embedding_dense_backward", rows, PLACES, 10, padding, scaled, atol=1e-5)
    same("embedding", TABLE.astype(kind), PLACES[:0].astype("int32"))
    same("embedding_dense_backward", rows[:0], PLACES[:0], 10, -1, True)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("padding", [-1, 2])
def test_bags_are_summed_and_averaged(mode: int, padding: int) -> None:
    places, offsets = PLACES.reshape(-1), numpy.array([0, 3, 3, 20])
    found = same("_embedding_bag", TABLE, places, offsets, False, mode, False, None, False, padding)
    back = (found[0], places, *found[1:], 10, False, mode, None, padding)
    same("_embedding_bag_dense_backward", *back)
    same("_embedding_bag", TABLE, places, offsets, False, mode, False, None, True)


def test_numbers_of_a_bag_may_have_weights() -> None:
    places, offsets = PLACES.reshape(-1), numpy.array([0, 3, 3, 20])
    weights = rng.normal(size=28).astype("float32")
    same("_embedding_bag", TABLE, places, offsets, False, 0, False, weights, atol=1e-5)


def test_a_row_that_is_not_there_is_refused() -> None:
    there = engine("cpu")
    with pytest.raises(BadInput) as found:
        run(OPS["embedding"], there, [there.upload(TABLE), there.upload(PLACES + 1)], {})
    assert str(found.value).splitlines()[0] == (
        "cannot compute embedding(float32[10, 6], int64[4, 7]): "
        "an index is outside of a table of 10 rows"
    )
