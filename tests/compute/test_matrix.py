"""Products of matrices: dtypes, views, empty ones, second gradients, error texts."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import functional as table
from holdfast.compute.autograd import tape
from holdfast.compute.tensors.custom_tensor import CustomTensor

F: Any = table


def numbers(*shape: int, seed: int = 0) -> numpy.ndarray[Any, Any]:
    return numpy.random.default_rng(seed).normal(size=shape).astype("float32")


def ours(array: Any, **options: Any) -> Any:
    return CustomTensor(array, dtype=str(array.dtype), **options)


def close(tensor: Any, expected: Any, rtol: float = 1e-5) -> None:
    numpy.testing.assert_allclose(tensor.data, expected, rtol=rtol, atol=1e-5)


SHAPES = [
    *(((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4))),
    *(((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4))),
    *(((6, 1, 2, 3), (5, 3, 4)), ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 0, 3), (3, 4))),
]


@pytest.mark.parametrize(("one", "other"), SHAPES)
def test_matmul_and_its_gradients_are_torchs_for_every_pair_of_ranks(one: Any, other: Any) -> None:
    a, b = numbers(*one), numbers(*other, seed=1)
    x, y = ours(a, requires_grad=True), ours(b, requires_grad=True)
    tx, ty = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    out, expected = x @ y, tx @ ty
    close(out, expected.detach().numpy())
    slope = numbers(*expected.shape, seed=2)
    out.backward(ours(slope))
    expected.backward(torch.tensor(slope))
    assert tx.grad is not None
    assert ty.grad is not None
    close(x.grad, tx.grad.numpy(), 1e-4)
    close(y.grad, ty.grad.numpy(), 1e-4)


@pytest.mark.parametrize(
    ("input", "weight", "bias"),
    [((3,), (4, 3), (4,)), ((2, 3), (4, 3), None), ((5, 2, 3), (4, 3), (4,)), ((2, 3), (3,), None)],
)
def test_linear_can_be_differentiated_twice(input: Any, weight: Any, bias: Any) -> None:
    shapes = [s for s in (input, weight, bias) if s is not None]
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    mine = [ours(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]

    first = tape.grad((F.linear(*mine) ** 2).sum(), mine, create_graph=True)
    loss = torch.nn.functional.linear(*theirs).square().sum()
    wanted = torch.autograd.grad(loss, theirs, create_graph=True)
    for g, t in zip(first, wanted, strict=True):
        close(g, t.detach().numpy(), 1e-4)
    second = tape.grad(sum((g * g).sum() for g in first), mine)
    wanted = torch.autograd.grad(torch.stack([g.square().sum() for g in wanted]).sum(), theirs)
    for g, t in zip(second, wanted, strict=True):
        close(g, t.numpy(), 1e-4)


def test_matmul_can_be_differentiated_twice() -> None:
    a, b = ours(numbers(2, 3, 4), requires_grad=True), ours(numbers(4, 2), requires_grad=True)
    ta, tb = (torch.tensor(t.data, requires_grad=True) for t in (a, b))
    mine = tape.grad(((a @ b) ** 3).sum(), (a, b), create_graph=True)
    theirs = torch.autograd.grad(((ta @ tb) ** 3).sum(), (ta, tb), create_graph=True)
    second = tape.grad((mine[0] * mine[0]).sum() + mine[1].sum(), (a, b))
    wanted = torch.autograd.grad(theirs[0].square().sum() + theirs[1].sum(), (ta, tb))
    for g, t in zip(second, wanted, strict=True):
        close(g, t.numpy(), 1e-4)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_narrow_numbers_are_added_in_float32_and_rounded_once(kind: str) -> None:
    a, b = (CustomTensor(numbers(8, 512, seed=i), dtype=kind) for i in (0, 1))
    out = a @ F.transpose(b, 0, 1)
    exact = a.data.astype("float32") @ b.data.astype("float32").T
    assert str(out.dtype) == kind
    numpy.testing.assert_array_equal(out.data, exact.astype(out.dtype))
    biased = F.addmm(out, a, F.transpose(b, 0, 1), beta=2, alpha=0.5)
    numpy.testing.assert_array_equal(
        biased.data, (0.5 * exact + 2 * out.data.astype("float32")).astype(out.dtype)
    )


def test_integers_are_multiplied_exactly() -> None:
    big = numpy.array([[2**40 + 1, 3], [5, 7]])
    out = ours(big) @ ours(big)
    assert out.data.tolist() == [[(2**40 + 1) ** 2 % 2**64 + 15, 3 * (2**40 + 1) + 21],
                                 [5 * (2**40 + 1) + 35, 64]]  # fmt: skip
    small = ours(numpy.full((2, 2), 100, "int8"))
    assert (small @ small).data.tolist() == [[32, 32], [32, 32]]  # it wraps, as torch's does


def test_transposed_and_strided_views_give_the_same_as_copies() -> None:
    a, b = ours(numbers(3, 6, 8)), ours(numbers(3, 5, 8, seed=1))
    turned = F.transpose(b, 1, 2)
    close(a @ turned, a.data @ b.data.swapaxes(1, 2))
    close(F.bmm(F.transpose(a, 1, 2), a), a.data.swapaxes(1, 2) @ a.data)
    sliced = F.slice(a, 2, 0, None, 2)
    close(sliced @ F.transpose(sliced, 1, 2), sliced.data @ sliced.data.swapaxes(1, 2))
    spread = F.expand(ours(numbers(1, 8)), (6, 8))
    close(F.linear(spread, b[0]), spread.data @ b.data[0].T)


def test_beta_zero_does_not_read_what_is_added_to() -> None:
    nothing = ours(numpy.full((2, 2), numpy.nan, "float32"))
    one = ours(numpy.ones((2, 2), "float32"))
    assert F.addmm(nothing, one, one, beta=0).data.tolist() == [[2, 2], [2, 2]]


def test_products_over_no_numbers_are_zero() -> None:
    out = F.addmm(ours(numbers(2, 2)), ours(numbers(2, 0)), ours(numbers(0, 2)), beta=0)
    assert out.data.tolist() == [[0, 0], [0, 0]]
    assert F.dot(ours(numbers(0)), ours(numbers(0))).data == 0
    assert F.bmm(ours(numbers(0, 2, 3)), ours(numbers(0, 3, 4))).shape == (0, 2, 4)
    assert F.addbmm(ours(numbers(2, 4)), ours(numbers(0, 2, 3)), ours(numbers(0, 3, 4))).shape == (
        2,
        4,
    )


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,kj", (2, 3), (4, 3)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("ij,jk->ki", (3, 1), (5, 2)),
    ("iij,j->i", (3, 3, 2), (2,)),
    ("ij,k->i", (2, 3), (4,)),
]


@pytest.mark.parametrize(("equation", "one", "other"), EQUATIONS)
def test_einsum_of_two_is_torchs(equation: str, one: Any, other: Any) -> None:
    a, b = numbers(*one), numbers(*other, seed=1)
    wanted = torch.einsum(equation, torch.tensor(a), torch.tensor(b)).numpy()
    close(F.einsum(equation, [ours(a), ours(b)]), wanted, 1e-4)


def test_einsum_of_one_and_of_several() -> None:
    a, b, c = numbers(3, 3), numbers(3, 4), numbers(4, 2)
    close(F.einsum("ii->i", [ours(a)]), numpy.diagonal(a))
    close(F.einsum("ij->ji", [ours(b)]), b.T)
    close(F.einsum("ij->", [ours(b)]), b.sum())
    close(F.einsum("ij,jk,kl->il", [ours(a), ours(b), ours(c)]), a @ b @ c, 1e-4)
    path = F.einsum("ij,jk,kl->il", [ours(a), ours(b), ours(c)], path=[1, 2, 0, 1])
    close(path, a @ b @ c, 1e-4)


def test_other_products() -> None:
    a, b = numbers(2, 3), numbers(3, 4)
    close(F.kron(ours(a), ours(b)), numpy.kron(a, b))
    close(F.tensordot(ours(a), ours(b), 1), numpy.tensordot(a, b, 1))
    close(F.tensordot(ours(a), ours(b), dims=([1], [0])), a @ b)
    close(F.inner(ours(a), ours(b.T)), numpy.inner(a, b.T))
    close(F.outer(ours(a[0]), ours(b[0])), numpy.outer(a[0], b[0]))
    close(F.chain_matmul([ours(a), ours(b), ours(b.T)]), a @ b @ b.T, 1e-4)
    close(
        F.linalg_matrix_power(ours(numbers(3, 3)), 5),
        numpy.linalg.matrix_power(numbers(3, 3), 5),
        1e-4,
    )


PRODUCT = "the columns of the first to be the rows of the second, and one dtype"
ERRORS = [
    (lambda: F.mm(ours(numbers(2, 3)), ours(numbers(4, 5))),
     "cannot compute mm(float32[2, 3], float32[4, 5]): 3 columns do not match 4 rows\n"
     f"  expected: 2-D tensors: {PRODUCT}"),
    (lambda: ours(numbers(2, 3, 4)) @ ours(numbers(3, 4, 5)),
     "cannot compute matmul(float32[2, 3, 4], float32[3, 4, 5]): batches of [2] and of [3] do not "
     f"broadcast\n  expected: {PRODUCT}"),
    (lambda: F.mm(ours(numbers(2, 3)), ours(numbers(3, 5).astype("float64"))),
     "cannot compute mm(float32[2, 3], float64[3, 5]): float32 and float64 are not multiplied with "
     f"each other\n  expected: 2-D tensors: {PRODUCT}"),
    (lambda: F.linear(ours(numbers(2, 3)), ours(numbers(5, 4))),
     "cannot compute linear(float32[2, 3], float32[5, 4]): 3 columns do not match 4 rows\n"
     "  expected: input (…, features in), weight (features out, features in), bias (features out)"),
    (lambda: F.einsum("ij,jk->ik", [ours(numbers(2, 3)), ours(numbers(4, 4))]),
     "cannot compute einsum('ij,jk->ik', [float32[2, 3], float32[4, 4]]): 'j' is 3 and 4\n"
     '  expected: a letter for each dimension of each tensor, as in "bij,bjk->bik"'),
    (lambda: F.tril(ours(numbers(3))),
     "cannot compute tril(float32[3]): 1 dimensions are fewer than 2\n"
     "  expected: a matrix, or a batch of them"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_errors_say_what_would_work(call: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert str(caught.value) == text
