"""Distances between rows and their gradients, against the NumPy engine."""

from __future__ import annotations

import numpy
import pytest

from tests.compute.opencl.checks import same
from tests.tolerance import bound

rng = numpy.random.default_rng(0)
ONE = rng.normal(size=(2, 1, 5, 4)).astype("float32")
OTHER = rng.normal(size=(3, 6, 4)).astype("float32")
OTHER[0, 0] = ONE[0, 0, 0]  # a distance of 0


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, numpy.inf])
def test_every_power(p: float) -> None:
    out = same("_cdist_forward", ONE, OTHER, p, None)
    wide = numpy.broadcast_to(ONE, (2, 3, 5, 4))
    same("_cdist_backward", out, wide, numpy.broadcast_to(OTHER, (2, 3, 6, 4)), p, out, atol=1e-5)
    same("_pdist_forward", OTHER[0], p)
    same("_cdist_forward", ONE[:, :, :, :0], OTHER[:, :, :0], p, None)


def test_many_rows_are_not_squared_first() -> None:
    rows = rng.normal(size=(40, 7)).astype("float32")
    # A row is as far from itself as its square is off.
    near = bound("float32", rows.shape[1], 2 * (rows**2).sum(1).max()) ** 0.5
    same("_cdist_forward", rows, rows[::2], 2.0, 1, rtol=1e-3, atol=near)
    same("_euclidean_dist", rows, rows[::2], rtol=1e-3, atol=near)
    same("_pdist_forward", rows[:1], 2.0)
