"""Joining, flipping, rolling and im2col, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.compute.opencl.checks import same

rng = numpy.random.default_rng(0)
X = rng.normal(size=(4, 5, 6)).astype("float32")
KINDS = ["float32", "float16", "bool", "int64", "complex64"]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_dtype_are_joined(kind: str) -> None:
    array = X.astype(kind)
    same("cat", [array, array[:, 1:3], array[:, :0]], 1)
    same("stack", [array, array], -1)
    same("repeat", array[:, :1], [2, 1, 3, 2])
    same("flip", array, [0, -1])
    same("roll", array, [2, -1], [0, 2])


def test_dtypes_are_promoted() -> None:
    same("cat", [X, X.astype("float16"), X.astype("int64")])
    same("cat", [numpy.zeros(0, "float32"), X], 2)
    same("stack", [X > 0, X.astype("int32")])
    same("_chunk_cat", [X, X[:3]], 0, 2)


def test_views_are_joined_and_turned() -> None:
    turned = X.transpose(2, 0, 1)
    same("cat", [turned, turned[:, ::2]], 1)
    same("repeat", turned, [1, 2, 1])
    same("repeat", turned, [0, 2, 1])
    same("flip", turned, [1])
    same("flip", X, [])
    same("flip", numpy.array(2, "float32"), [])
    same("roll", turned, [7])
    same("roll", X[:0], [1], [1])
    for k in (-1, 0, 1, 2, 3):
        same("rot90", turned, k, [0, 2])
    same("diag_embed", turned, 1, 0, -1)


def test_patches_and_back() -> None:
    image = rng.normal(size=(2, 3, 7, 8)).astype("float32")
    given: list[Any] = [[2, 3], [1, 2], [1, 0], [2, 1]]
    out = same("im2col", image, *given)
    same("col2im", out, [7, 8], *given)
    same("im2col", image[0].transpose(0, 2, 1), *given)
    same("col2im", out[0].astype("float16"), [7, 8], *given)
    windows = rng.normal(size=(4, 2, 6, 3)).astype("float32")
    same("unfold_backward", windows, [4, 5, 6], 1, 3, 2)


def test_pixels_become_channels() -> None:
    image = rng.normal(size=(2, 8, 4, 6)).astype("float32")
    same("pixel_shuffle", image, 2)
    same("pixel_unshuffle", image[0], 2)
    same("channel_shuffle", image.transpose(0, 1, 3, 2), 4)
