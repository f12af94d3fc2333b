"""Views of arrays of a device: the shapes, strides and errors of the NumPy engine, no copies."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import engine, same


def numbers(*shape: int) -> Any:
    return numpy.random.default_rng(0).normal(size=shape).astype("float32")


TURNED = numbers(4, 3, 5).transpose(2, 0, 1)
VIEWS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("alias", TURNED, ()),
    ("view", numbers(2, 6), ([3, -1],)),
    ("view", numbers(4, 6)[:, ::2], ([2, 2, 3],)),
    ("_reshape_alias", numbers(2, 6), ([12], [1])),
    ("squeeze", numbers(1, 3, 1), ()),
    ("squeeze.dim", numbers(1, 3, 1), (-1,)),
    ("squeeze.dims", numbers(1, 3, 1), ([0, 1],)),
    ("unsqueeze", TURNED, (-2,)),
    ("expand", numbers(2, 1, 3), ([4, -1, 5, 3],)),
    ("permute", TURNED, ([2, -3, 1],)),
    ("transpose.int", TURNED, (0, -1)),
    ("transpose.int", numbers(), (0, -1)),
    ("t", numbers(2, 3), ()),
    ("select.int", TURNED, (-1, -2)),
    ("slice.Tensor", TURNED, (1, 1, 9, 2)),
    ("slice.Tensor", numbers(5), (0, 4, 2)),
    ("diagonal", TURNED, (-1, 2, 0)),
    ("diagonal", numbers(2, 3), (7,)),
    ("unfold", TURNED, (0, 3, 2)),
    ("unfold", numbers(), (0, 1, 1)),
    ("as_strided", numbers(3, 4), ([2, 3], [1, 2], 1)),
    ("split.Tensor", numbers(5, 2), (2,)),
    ("split_with_sizes", numbers(5, 2), ([1, 0, 4],)),
    ("unbind.int", TURNED, (1,)),
    ("view.dtype", numbers(3, 4), ("int32",)),
    ("view.dtype", numbers(3, 4), ("float16",)),
    ("view_as_real", numbers(3, 2).view("complex64"), ()),
    ("view_as_complex", numbers(3, 2), ()),
]


@pytest.mark.parametrize(("name", "array", "args"), VIEWS, ids=[v[0] for v in VIEWS])
def test_a_view_shares_memory_and_has_the_numbers_numpy_has(
    name: str, array: Any, args: Any
) -> None:
    same(name, array, *args)
    there = engine("cpu").upload(array)
    found = run(OPS[name], engine("cpu"), [there, *args], {})
    for one in found if isinstance(found, list) else [found]:
        assert one.memory is there.memory


@pytest.mark.parametrize("kind", ["float32", "bool", "int64", "float16", "complex64"])
def test_copies_of_views_take_every_dtype(kind: str) -> None:
    array = (numbers(4, 3, 5) > 0 if kind == "bool" else numbers(4, 3, 5) * 9).astype(kind)
    same("reshape", array.transpose(2, 0, 1), [15, 4])
    same("permute_copy", array, [2, 0, 1])
    same("contiguous", array.transpose(2, 0, 1))
    same("select_scatter", array, array[:, 0] + array[:, 1], 1, 2)
    same("slice_backward", array[:2], [5, 3, 5], 0, 1, 5, 2)
    same("diagonal_scatter", array, array[:, 0, :3], 0, 1, 2)


def test_a_view_of_a_view_keeps_its_place_in_memory() -> None:
    there = engine("cpu")
    array = there.upload(numpy.arange(24, dtype="float32").reshape(4, 6))
    part = run(OPS["slice.Tensor"], there, [array, 0, 1], {})
    part = run(OPS["select.int"], there, [part, 1, 2], {})
    assert there.download(part).tolist() == [8, 14, 20]
    whole = run(OPS["as_strided"], there, [part, [3], [6], 0], {})
    assert there.download(whole).tolist() == [0, 6, 12]


@pytest.mark.parametrize(
    ("name", "array", "args"),
    [
        ("view", numbers(2, 6).T, ([12],)),
        ("view", numbers(2, 6), ([5, -1],)),
        ("select.int", numbers(2, 6), (1, 6)),
        ("slice.Tensor", numbers(2, 6), (0, 0, 1, 0)),
        ("expand", numbers(2, 6), ([3, 6],)),
        ("as_strided", numbers(2, 6), ([3, 6], [6, 1])),
        ("split_with_sizes", numbers(2, 6), ([3, 4], 1)),
        ("diagonal", numbers(2, 6), (0, 1, -1)),
        ("view_as_complex", numbers(2, 6), ()),
        ("view_as_real", numbers(2, 6), ()),
        ("select_scatter", numbers(2, 6), (numbers(2), 0, 1)),
    ],
)
def test_what_cannot_be_seen_so_is_refused_in_the_words_of_numpy(
    name: str, array: Any, args: Any
) -> None:
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], [array, *args], {})
    there = engine("cpu")
    flat = there.upload(numpy.ascontiguousarray(array))
    if not array.flags.c_contiguous:
        flat = there.upload(array.T.copy()).transpose((1, 0))
    with pytest.raises(BadInput) as found:
        run(OPS[name], there, [flat, *args], {})
    assert str(found.value) == str(expected.value)


def test_a_tensor_tells_about_itself() -> None:
    for name, args in (
        ("sym_size.int", (1,)),
        ("sym_stride.int", (0,)),
        ("sym_numel", ()),
        ("sym_is_contiguous", ()),
    ):
        same(name, TURNED, *args)
    same("_local_scalar_dense", numpy.array([[3.5]], "float16"))
    same("_local_scalar_dense", numpy.array(2**40))
