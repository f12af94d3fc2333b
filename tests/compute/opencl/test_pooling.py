"""Average and max pooling and their gradients, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, same

rng = numpy.random.default_rng(0)
X = rng.normal(size=(2, 3, 5, 9, 8)).astype("float32")
SHAPES = {1: X[:, 0, 0], 2: X[:, :, 0], 3: X}
# kernel, stride, padding, ceil_mode
WINDOWS: list[tuple[Any, ...]] = [
    (2, 2, 0, False),
    (3, 2, 1, True),
    (3, 1, 1, False),
    (2, 3, 1, True),
]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS)
def test_means_of_windows(dims: int, window: Any) -> None:
    given = [[n] for n in window[:3]]
    for padded in (True, False):
        out = same(f"avg_pool{dims}d", SHAPES[dims], *given, window[3], padded)
    if dims > 1:
        back = (out, SHAPES[dims], *given, window[3])
        same(f"avg_pool{dims}d_backward", *back, False, None)
        same(f"avg_pool{dims}d_backward", *back, True, 5)
        same(f"avg_pool{dims}d", SHAPES[dims], *given, window[3], True, 5)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_largest_of_windows(dims: int, window: Any, dilation: int) -> None:
    kernel, stride, padding, ceil = window
    given = ([kernel], [stride], [padding], [dilation], ceil)
    name = f"max_pool{dims}d_with_indices"
    out, where = same(name, SHAPES[dims], *given)
    grad = rng.normal(size=out.shape).astype("float32")
    same(f"{name}_backward", grad, SHAPES[dims], *given, where)


def test_of_equal_numbers_the_first_and_of_no_numbers_the_last() -> None:
    flat = numpy.zeros((1, 6, 6), "float32")
    same("max_pool2d_with_indices", flat, [3], [2], [1])
    flat[0, 1:4, 2:4] = numpy.nan
    same("max_pool2d_with_indices", flat, [3], [2], [1])
    same("max_pool2d_with_indices", -flat - numpy.inf, [3], [2], [1])


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("sizes", [[1], [3], [7]])
def test_windows_that_adapt(dims: int, sizes: Any) -> None:
    array = SHAPES[dims]
    out = same(f"_adaptive_avg_pool{dims}d", array, sizes * dims)
    same(f"_adaptive_avg_pool{dims}d_backward", out, array)
    out, where = same(f"adaptive_max_pool{dims}d", array, sizes * dims)
    same(f"adaptive_max_pool{dims}d_backward", out, array, where)
    same("adaptive_avg_pool1d", SHAPES[1], sizes)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int64"])
def test_dtypes_and_layouts(kind: str) -> None:
    from holdfast.compute import dtype

    array = (X[:, :, 0] * 5).astype(dtype.dtype(kind)).transpose(0, 1, 3, 2)
    same("max_pool2d_with_indices", array, [3], [2], [1])
    if kind != "int64":
        same("avg_pool2d", array, [3], [2], [1])
        same("_adaptive_avg_pool2d", array, [2, 3])


def test_the_largest_go_back_to_their_places() -> None:
    out, where = same("max_pool2d_with_indices", X[:, :, 0], [2], [2])
    same("max_unpool2d", out, where, [9, 8])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("avg_pool2d", (X[0, 0], [6], [1], [4])),
        ("avg_pool2d", (X[0, 0], [3], [1], [0], False, True, 0)),
        ("max_pool2d_with_indices", (X[0, 0], [12])),
        ("_adaptive_avg_pool2d", (X, [1, 1])),
        ("max_unpool2d", (X[0], numpy.full((3, 5, 9, 8), 80), [9, 8])),
    ],
)
def test_windows_that_cannot_be_are_refused_in_the_words_of_numpy(name: str, args: Any) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    given = [engine("cpu").upload(a) if isinstance(a, numpy.ndarray) else a for a in args]
    with pytest.raises(BadInput) as found:
        run(OPS[name], engine("cpu"), given, {})
    assert str(found.value) == str(expected.value)
