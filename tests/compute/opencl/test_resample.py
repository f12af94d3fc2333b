"""Resampling, its gradient, and grid sampling, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from holdfast.compute.ops.layers.resample import KINDS
from tests.compute.opencl.checks import engine, same

rng = numpy.random.default_rng(0)
X = rng.normal(size=(2, 3, 4, 7, 6)).astype("float32")
SHAPES = {1: X[0, :, 0], 2: X[:, :, 0], 3: X}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("sizes", [[8, 14, 12], [3, 5, 4], [4, 7, 6]])
def test_every_kind_forward_and_back(name: str, sizes: list[int]) -> None:
    dims, aligned = KINDS[name]
    array, wanted = SHAPES[dims], sizes[-dims:]
    for corners in ([False], [True]) if aligned else ([],):
        out = same(name, array, wanted, *corners, atol=1e-5)
        same(f"{name}_backward", out, wanted, list(array.shape), *corners, atol=1e-5)


def test_scales_say_how_far_pixels_are_apart() -> None:
    same("upsample_bilinear2d", X[:, :, 0], [10, 9], False, 1.5, 1.6)
    same("upsample_nearest2d", X[:, :, 0], [14, 12], 2.1, 2.1)
    same("upsample_bicubic2d", X[:, :, 0], [10, 9], False, 1.5, 1.6, atol=1e-5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "uint8"])
def test_dtypes_and_layouts(kind: str) -> None:
    from holdfast.compute import dtype

    array = (abs(X[:, :, 0]) * 50).astype(dtype.dtype(kind)).transpose(0, 1, 3, 2)
    same("upsample_nearest2d", array, [11, 14])
    same("upsample_bilinear2d", array, [12, 13], False)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_points_are_sampled(mode: int, padding: int, aligned: bool) -> None:
    grid = rng.uniform(-1.8, 1.8, (2, 4, 5, 2)).astype("float32")
    same("grid_sampler_2d", X[:, :, 0], grid, mode, padding, aligned, atol=1e-5)


def test_a_point_that_is_no_number_reads_nothing_outside() -> None:
    grid = numpy.full((2, 1, 2, 2), numpy.nan, "float32")
    grid[0, 0, 0] = 1e30
    for padding in (0, 1):
        same("grid_sampler_2d", X[:, :, 0], grid, 1, padding, False)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("upsample_nearest2d", (X, [3, 3])),
        ("upsample_nearest2d", (X[0], [0, 3])),
        ("upsample_bilinear2d_backward", (X[0], [3, 3], [3, 4, 9, 9], False)),
        ("grid_sampler_2d", (X[0], X[0], 0, 0, False)),
        ("grid_sampler_2d", (X[0], X[0], 3, 0, False)),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_of_numpy(name: str, args: Any) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    given = [engine("cpu").upload(a) if isinstance(a, numpy.ndarray) else a for a in args]
    with pytest.raises(BadInput) as found:
        run(OPS[name], engine("cpu"), given, {})
    assert str(found.value) == str(expected.value)
