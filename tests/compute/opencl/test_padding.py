"""Padding and its backward ops, as the NumPy engine has them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, same

rng = numpy.random.default_rng(0)
X = rng.normal(size=(2, 3, 4, 5, 6)).astype("float32")


@pytest.mark.parametrize("kind", ["float32", "float16", "bool", "int64", "complex64"])
def test_constants_go_around_and_negative_padding_cuts_off(kind: str) -> None:
    array = X[0, 0].astype(kind)
    same("constant_pad_nd", array, [1, 2], 1)
    same("constant_pad_nd", array, [1, 0, 0, 3, -1, 2])
    same("constant_pad_nd", array.transpose(2, 0, 1), [-1, -2, 2, 1], 1)
    same("constant_pad_nd", array[:0], [1, 1, 0, 0, 1, 0], 1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_mirrors_and_edges_forward_and_back(kind: str, dims: int) -> None:
    array = X[0] if dims == 2 else X[0, 0] if dims == 1 else X
    padding = [2, 1, 1, 3, 0, 2][: 2 * dims]
    name = f"{kind}_pad{dims}d"
    out = same(name, array, padding)
    same(f"{name}_backward", out, array, padding)
    same(name, array.astype("float16"), padding)
    same(f"{name}_backward", out.astype("float16"), array.astype("float16"), padding)
    same(name, array.swapaxes(-1, -2), [1, 0] * dims)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("constant_pad_nd", (X, [-7, 0])),
        ("constant_pad_nd", (X, [1])),
        ("reflection_pad1d", (X[0, 0], [6, 0])),
        ("replication_pad2d", (X, [1, 1, 1, 1])),
        ("reflection_pad1d_backward", (X[0, 0], X[0, 0], [1, 0])),
    ],
)
def test_padding_that_cannot_be_is_refused_in_the_words_of_numpy(name: str, args: Any) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    given = [engine("cpu").upload(a) if isinstance(a, numpy.ndarray) else a for a in args]
    with pytest.raises(BadInput) as found:
        run(OPS[name], engine("cpu"), given, {})
    assert str(found.value) == str(expected.value)
