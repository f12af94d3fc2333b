"""Order, counting and choosing as functions of tensors, against torch.

The ops that torch calls by their ATen names are compared by tests/contract; here are those that
torch makes up of others before anything arrives, and the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import functional as f
from holdfast.compute.tensors.custom_tensor import CustomTensor

F: Any = f
NAN = float("nan")
ROWS = numpy.array([[3.0, -1.0, 2.0, 7.0], [0.5, 9.0, -4.0, 1.0], [6.0, 5.0, 8.0, -2.0]], "float32")
HOLES = numpy.where(ROWS > 7.5, NAN, ROWS).astype("float32")
WHOLE = numpy.array([[2, 0, 2], [1, 2, 3]])


def both(ours: Callable[..., Any], theirs: Callable[..., Any], *arrays: Any, **kwargs: Any) -> None:
    """Results are equal, and so are the gradients of float32 arguments."""
    mine = [_ours(a) for a in arrays]
    others = [_theirs(a) for a in arrays]
    found, expected = ours(*mine, **kwargs), theirs(*others, **kwargs)
    pairs = list(zip(_many(found), _many(expected), strict=True))
    for one, other in pairs:
        assert str(one.dtype) == str(other.dtype).removeprefix("torch.")
        numpy.testing.assert_allclose(one.data, other.detach().numpy(), rtol=1e-5, atol=1e-6)
    one, other = pairs[0]
    if not other.requires_grad:
        return
    seed = numpy.asarray(numpy.cos(numpy.arange(other.numel()).reshape(other.shape)), "float32")
    one.backward(CustomTensor(seed))
    other.backward(torch.from_numpy(seed))
    for leaf, twin in zip(mine, others, strict=True):
        if isinstance(twin, torch.Tensor) and twin.grad is not None:
            numpy.testing.assert_allclose(leaf.grad.data, twin.grad, rtol=1e-4, atol=1e-5)


def _ours(value: Any) -> Any:
    if not isinstance(value, numpy.ndarray):
        return value
    return CustomTensor(value, dtype=value.dtype, requires_grad=value.dtype == "float32")


def _theirs(value: Any) -> Any:
    if not isinstance(value, numpy.ndarray):
        return value
    return torch.from_numpy(value.copy()).requires_grad_(value.dtype == "float32")


def _many(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else [value]


# ---- quantiles

SHARES = numpy.array([0.0, 0.3, 0.5, 1.0], "float32")


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.4, SHARES])
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_quantiles_are_torchs(interpolation: str, q: Any, dim: Any, keepdim: bool) -> None:
    how: Any = {"dim": dim, "keepdim": keepdim, "interpolation": interpolation}
    both(F.quantile, torch.quantile, ROWS, q, **how)
    both(F.quantile, torch.quantile, HOLES, q, **how)
    both(F.nanquantile, torch.nanquantile, HOLES, q, **how)


def test_a_quantile_of_a_single_number_is_that_number() -> None:
    both(F.quantile, torch.quantile, numpy.array(3.0, "float32"), 0.3)
    both(F.quantile, torch.quantile, numpy.array(3.0, "float32"), 0.3, dim=0, keepdim=True)


# ---- functions that are made of others

PICKS = numpy.array([[2, 0, 2, 1]])


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("msort", [ROWS], {}),
        ("argsort", [ROWS], {"descending": True}),
        ("argsort", [ROWS, 0], {}),
        ("argsort", [WHOLE], {"stable": True, "dim": 0}),
        ("argwhere", [WHOLE], {}),
        ("where", [WHOLE > 1], {}),
        ("take_along_dim", [ROWS, PICKS], {"dim": 0}),
        ("take_along_dim", [ROWS, numpy.array([5, 0, 5])], {}),
        ("repeat_interleave", [ROWS, 2], {}),
        ("repeat_interleave", [ROWS, 2], {"dim": 1}),
        ("repeat_interleave", [ROWS, numpy.array([2, 0, 1])], {"dim": 0}),
        ("repeat_interleave", [ROWS, numpy.array([2])], {"dim": -1}),
        ("repeat_interleave", [numpy.array([2, 0, 1])], {}),
        ("cov", [ROWS], {}),
        ("cov", [ROWS[0]], {"correction": 0}),
        ("corrcoef", [ROWS], {}),
        ("corrcoef", [ROWS[0]], {}),
        ("isin", [WHOLE, numpy.array([0, 3])], {}),
        ("isin", [WHOLE, 2], {"invert": True}),
        ("isin", [2, WHOLE], {}),
        ("isin", [HOLES, HOLES], {}),
        ("bucketize", [2.5, numpy.array([1.0, 2.0, 3.0], "float32")], {"right": True}),
        ("searchsorted", [numpy.sort(ROWS), ROWS], {"side": "right", "out_int32": True}),
        ("bincount", [WHOLE.reshape(-1)], {"minlength": 6}),
        ("bincount", [numpy.array([0, 2, 2]), numpy.array([1, 2, 3], "float64")], {}),
        ("histc", [ROWS], {"bins": 4}),
        ("unique", [WHOLE], {}),
        ("unique", [WHOLE], {"return_inverse": True, "return_counts": True}),
        ("unique", [WHOLE[:, [0, 2, 0]]], {"dim": 1, "return_counts": True}),
        ("unique", [HOLES.astype("float64")], {"return_counts": True}),
        ("scatter", [WHOLE, 1, numpy.array([[0, 0], [1, 2]]), 2], {"reduce": "multiply"}),
        ("median", [HOLES], {}),
        ("nanmedian", [HOLES, 0], {}),
        ("mode", [WHOLE], {}),
        ("kthvalue", [ROWS, 2], {"keepdim": True}),
        ("topk", [ROWS, 2, 0], {"largest": False}),
        ("sort", [HOLES], {"descending": True}),
        ("index_select", [ROWS, 1, numpy.array([3, 3, 0])], {}),
        ("masked_select", [ROWS, ROWS > 1], {}),
        ("take", [ROWS, numpy.array([[1, -1], [1, 0]])], {}),
    ],
)
def test_functions_are_torchs(name: str, args: Any, kwargs: Any) -> None:
    both(getattr(F, name), getattr(torch, name), *args, **kwargs)


@pytest.mark.parametrize(("reduce", "like"), [("add", "sum"), ("multiply", "prod")])
def test_a_scatter_that_reduces_has_the_gradient_of_scatter_reduce(reduce: str, like: str) -> None:
    index = numpy.array([[0, 0], [1, 3]])

    def ours(rows: Any, values: Any, index: Any) -> Any:
        return F.scatter(rows, 1, index, values, reduce=reduce)

    def theirs(rows: Any, values: Any, index: Any) -> Any:
        return torch.scatter_reduce(rows, 1, index, values, like)

    both(ours, theirs, ROWS, ROWS[:2, 1:3].copy(), index)

    def ours_by_number(rows: Any, index: Any) -> Any:
        return F.scatter(rows, 1, index, 3.0, reduce=reduce)

    def theirs_by_number(rows: Any, index: Any) -> Any:
        return torch.scatter_reduce(rows, 1, index, torch.full(index.shape, 3.0), like)

    both(ours_by_number, theirs_by_number, ROWS, index)


# ---- errors


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(BadInput) as error:
        call(*args, **kwargs)
    return str(error.value)


def test_an_index_outside_of_the_tensor_is_refused() -> None:
    rows, three = CustomTensor(ROWS), CustomTensor([[3]], dtype="int64")
    expected = (
        "\n  expected: an index as long as the tensor or shorter in every dimension but `dim`, "
        "from 0 to the size of `dim` less 1"
    )
    assert refused(F.gather, rows, 0, three) == (
        "cannot compute gather(float32[3, 4], 0, int64[1, 1]): index 3 is out of range for "
        "dimension 0 of size 3" + expected
    )
    below = CustomTensor([[-1]], dtype="int64")
    assert refused(F.gather, rows, 1, below) == (
        "cannot compute gather(float32[3, 4], 1, int64[1, 1]): index -1 is out of range for "
        "dimension 1 of size 4" + expected
    )
    assert refused(F.index_select, rows, 0, CustomTensor([3], dtype="int64")) == (
        "cannot compute index_select(float32[3, 4], 0, int64[1]): index 3 is out of range for "
        "dimension 0 of size 3\n"
        "  expected: an index of one dimension, from 0 to the size of `dim` less 1"
    )


def test_an_index_that_is_longer_than_the_tensor_is_refused() -> None:
    rows = CustomTensor(ROWS)
    long = CustomTensor(numpy.zeros((4, 1)), dtype="int64")
    assert refused(F.gather, rows, 1, long) == (
        "cannot compute gather(float32[3, 4], 1, int64[4, 1]): the index of shape [4, 1] does not "
        "fit into [3, 4] in every dimension but 1\n"
        "  expected: an index as long as the tensor or shorter in every dimension but `dim`, "
        "from 0 to the size of `dim` less 1"
    )


def test_more_than_there_is_cannot_be_picked() -> None:
    rows = CustomTensor(ROWS)
    assert refused(F.topk, rows, 5) == (
        "cannot compute topk(float32[3, 4], 5): k is 5, dimension 1 has the size 4\n"
        "  expected: topk(Tensor self, int k, int dim=-1, bool largest=True, bool sorted=True) -> "
        "(Tensor values, Tensor indices)"
    )
    assert refused(F.kthvalue, rows, 0) == (
        "cannot compute kthvalue(float32[3, 4], 0): k is 0, dimension 1 has the size 4\n"
        "  expected: kthvalue(Tensor self, int k, int dim=-1, bool keepdim=False) -> "
        "(Tensor values, Tensor indices)"
    )


def test_a_mask_of_numbers_is_refused() -> None:
    rows = CustomTensor(ROWS)
    assert refused(F.masked_fill, rows, rows, 0) == (
        "cannot compute masked_fill.Scalar(float32[3, 4], float32[3, 4], 0): the mask has the "
        "dtype float32, bool is expected\n"
        "  expected: a boolean mask whose shape broadcasts with the tensor's"
    )
