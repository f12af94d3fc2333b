"""Reductions, softmax, running sums, distances: what torch's own samples do not show."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import functional as f
from holdfast.compute.autograd import tape
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.tolerance import bound

F: Any = f


def ours(value: Any, dtype: Any = "float32", grad: bool = False) -> CustomTensor:
    return CustomTensor(numpy.asarray(value), dtype=dtype, requires_grad=grad)


def numbers(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def test_long_sums_over_outer_dimensions_keep_their_digits() -> None:
    values = numbers(20_000, 8) + 100
    exact = values.astype(numpy.float64)
    for dim in ([0], [0, 1]):
        found = F.sum(ours(values), dim).data
        assert numpy.allclose(found, exact.sum(tuple(dim)), rtol=bound("float32", 16))
    found = F.var(ours(values), [0]).data
    assert numpy.allclose(found, exact.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(700_003,), (3, 200_001)])
def test_variance_of_long_rows_is_blocked_and_right(shape: tuple[int, ...]) -> None:
    values = numbers(*shape) * 3 + 50
    found = F.var(ours(values), [-1]).data
    assert numpy.allclose(found, values.astype(numpy.float64).var(-1, ddof=1), rtol=1e-5)


def test_bfloat16_is_added_in_float32_and_rounded_once() -> None:
    values = numpy.full(4096, 1.0, ml_dtypes.bfloat16)
    total = F.sum(ours(values, "bfloat16"))
    assert str(total.dtype) == "bfloat16"
    assert float(total.data) == 4096
    assert float(F.mean(ours(values, "bfloat16")).data) == 1


@pytest.mark.parametrize(("name", "kind"), [("sum", "int64"), ("prod", "int64"), ("amax", "uint8")])
def test_dtype_of_reduced_integers(name: str, kind: str) -> None:
    assert str(getattr(F, name)(ours([1, 2, 3], "uint8")).dtype) == kind


def test_nan_is_the_largest_and_the_smallest() -> None:
    values = ours([1, numpy.nan, 3, numpy.nan])
    assert numpy.isnan(F.amax(values).data)
    assert int(F.argmax(values).data) == 1
    assert int(F.min(values, 0)[1].data) == 1
    assert F.cummax(values, 0)[1].data.tolist() == [0, 1, 1, 3]


def test_gradient_of_an_extreme_is_shared_by_equals() -> None:
    values = ours([1, 3, 3, 2], grad=True)
    F.amax(values).backward()
    assert values.grad is not None
    assert values.grad.data.tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradient_of_a_product_with_zeros(zeros: int) -> None:
    values = numbers(5)
    values[:zeros] = 0
    for name in ("prod", "cumprod"):
        peer = torch.tensor(values, requires_grad=True)
        mine = ours(values, grad=True)
        theirs, found = getattr(torch, name)(peer, 0), getattr(F, name)(mine, 0)
        theirs.sum().backward()
        F.sum(found).backward()
        assert peer.grad is not None
        assert mine.grad is not None
        assert numpy.allclose(mine.grad.data, peer.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_all_with_no_dimensions_named_reduces_nothing() -> None:
    assert F.all(ours([[1, 0]]), []).data.tolist() == [[True, False]]
    assert str(F.any(ours([2, 0], "uint8")).dtype) == "uint8"


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_large_arrays_goes_block_by_block(name: str, dim: int) -> None:
    values = numbers(40, 300, 50) * 10
    expected = getattr(torch, name)(torch.tensor(values), dim).numpy()
    assert numpy.allclose(getattr(F, name)(ours(values), dim).data, expected, atol=2e-6)


def test_softmax_where_nothing_is_seen() -> None:
    hidden = ours([[-numpy.inf, -numpy.inf], [0, 0]])
    assert F._safe_softmax(hidden, 1).data.tolist() == [[0, 0], [0.5, 0.5]]
    assert numpy.isnan(F.softmax(hidden, 1).data[0]).all()


def twice(mine: Any, theirs: Any, values: Any) -> None:
    """Compare gradients of the sum of squared gradients."""
    peer = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(theirs(peer).sum(), peer, create_graph=True)
    (expected,) = torch.autograd.grad((first**2).sum(), peer)
    start = ours(values, "float64", grad=True)
    (found,) = tape.grad(F.sum(mine(start)), start, create_graph=True)
    assert found is not None
    (second,) = tape.grad(F.sum(found * found), start)
    assert second is not None
    assert numpy.allclose(second.data, expected.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda x: F.softmax(x, 1) * x, lambda x: x.softmax(1) * x),
        (lambda x: F.log_softmax(x, 0) * x, lambda x: x.log_softmax(0) * x),
        (lambda x: F.var(x, [1]), lambda x: x.var(1)),
        (lambda x: F.std(x, [0], correction=0), lambda x: x.std(0, correction=0)),
        (lambda x: F.prod(x, 1), lambda x: x.prod(1)),
        (lambda x: F.cumsum(x, 1) * x, lambda x: x.cumsum(1) * x),
        (lambda x: F.logsumexp(x, [1]), lambda x: x.logsumexp(1)),
        (lambda x: F.norm(x, 2, [1]), lambda x: x.norm(2, 1)),
        (lambda x: F.norm(x, 3, [1]), lambda x: x.norm(3, 1)),
        (lambda x: F.max(x, 1)[0] ** 3, lambda x: x.max(1)[0] ** 3),
    ],
)
def test_gradients_of_gradients(mine: Any, theirs: Any) -> None:
    twice(mine, theirs, numbers(4, 5).astype(numpy.float64))


def test_renorm_and_dist_follow_torch() -> None:
    values, other = numbers(4, 6), numbers(4, 6, seed=1)
    found = F.renorm(ours(values), 2, 0, 1.5).data
    assert numpy.allclose(found, torch.tensor(values).renorm(2, 0, 1.5).numpy(), atol=1e-6)
    expected = torch.dist(torch.tensor(values), torch.tensor(other), 3)
    assert numpy.isclose(F.dist(ours(values), ours(other), 3).data, expected)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_cdist_of_batches_that_broadcast(p: float) -> None:
    one, other = numbers(2, 1, 3, 4), numbers(5, 6, 4, seed=1)
    peers = [torch.tensor(x, requires_grad=True) for x in (one, other)]
    mine = [ours(x, grad=True) for x in (one, other)]
    expected, found = torch.cdist(peers[0], peers[1], p), F.cdist(*mine, p)
    assert numpy.allclose(found.data, expected.detach().numpy(), atol=1e-5)
    expected.sum().backward()
    F.sum(found).backward()
    for peer, own in zip(peers, mine, strict=True):
        assert peer.grad is not None
        assert own.grad is not None
        assert numpy.allclose(own.grad.data, peer.grad.numpy(), rtol=1e-4, atol=1e-4)


# ---- errors


def refusal(call: Any) -> str:
    with pytest.raises(BadInput) as caught:
        call()
    return str(caught.value).splitlines()[0]


def test_errors_name_the_op_the_shapes_and_the_reason() -> None:
    empty, whole = ours(numpy.zeros((2, 0))), ours([1, 2], "int64")
    assert refusal(lambda: F.amax(empty, [1])) == (
        "cannot compute amax(float32[2, 0], [1]): an extreme over a dimension of size 0 does not "
        "exist"
    )
    assert refusal(lambda: F.mean(whole)) == (
        "cannot compute mean(int64[2]): the mean of int64 is not an integer; name a dtype, or "
        "cast first"
    )
    assert refusal(lambda: F.sum(empty, [0, 0])) == (
        "cannot compute sum.dim_IntList(float32[2, 0], [0, 0]): a dimension is named twice in "
        "[0, 0]"
    )
    assert refusal(lambda: F.sum(empty, 2)) == (
        "cannot compute sum.dim_IntList(float32[2, 0], 2): dimension 2 is not there: 2 dimensions, "
        "-2 to 1"
    )
    assert refusal(lambda: F.softmax(whole, 0)) == (
        "cannot compute _softmax(int64[2], 0, False): softmax takes floating-point numbers, not "
        "int64; name a dtype"
    )
    assert refusal(lambda: F.var_mean(whole, correction=0)) == (
        "cannot compute var_mean.correction(int64[2], correction=0): a variance of int64 needs "
        "floating-point or complex numbers"
    )
