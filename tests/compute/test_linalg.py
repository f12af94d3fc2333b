"""Factorizations, equations, norms and Fourier transforms, beside NumPy and torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.compute import functional as table
from holdfast.compute.engines.numpy import scipy
from holdfast.compute.tensors.custom_tensor import CustomTensor

F: Any = table


def numbers(*shape: int, seed: int = 0) -> numpy.ndarray[Any, Any]:
    return numpy.random.default_rng(seed).normal(size=shape).astype("float32")


def ours(array: Any, **options: Any) -> Any:
    return CustomTensor(array, dtype=str(array.dtype), **options)


def close(tensor: Any, expected: Any, atol: float = 1e-4) -> None:
    numpy.testing.assert_allclose(getattr(tensor, "data", tensor), expected, rtol=1e-4, atol=atol)


def positive(*shape: int) -> numpy.ndarray[Any, Any]:
    a = numbers(*shape)
    return a @ a.swapaxes(-1, -2) + numpy.eye(shape[-1], dtype="float32")


@pytest.mark.parametrize("batch", [(), (2,), (0,), (2, 3)])
def test_factors_give_the_matrix_back(batch: tuple[int, ...]) -> None:
    a = numbers(*batch, 5, 4)
    p, lower, upper = F.linalg_lu(ours(a))
    close(p @ lower @ upper, a)
    q, r = F.linalg_qr(ours(a))
    close(q @ r, a)
    u, s, vh = F.linalg_svd(ours(a), full_matrices=False)
    close((u * F.unsqueeze(s, -2)) @ vh, a)
    square = positive(*batch, 4, 4)
    factor = F.linalg_cholesky(ours(square))
    close(factor @ F.transpose(factor, -2, -1), square)
    values, vectors = F.linalg_eigh(ours(square))
    close((vectors * F.unsqueeze(values, -2)) @ F.transpose(vectors, -2, -1), square)
    close(F.linalg_inv(ours(square)) @ ours(square), numpy.eye(4) + square * 0, 1e-3)


def test_pivots_and_info_are_as_torch_has_them() -> None:
    a = numbers(3, 4, 4)
    lu, pivots, info = F.linalg_lu_factor_ex(ours(a))
    theirs = torch.linalg.lu_factor_ex(torch.tensor(a))
    close(lu, theirs.LU.numpy())
    assert pivots.data.tolist() == theirs.pivots.tolist()
    assert str(pivots.dtype) == str(info.dtype) == "int32"
    indefinite = numpy.diag(numpy.array([1, -2, 3], "float32"))
    assert F.linalg_cholesky_ex(ours(indefinite))[1].data == 2
    singular = numpy.zeros((2, 2), "float32")
    assert F.linalg_inv_ex(ours(singular))[1].data == 1
    assert F.linalg_solve_ex(ours(singular), ours(singular))[1].data == 1
    ld, places, _ = F.linalg_ldl_factor_ex(ours(a[0] + a[0].T))
    expected = torch.linalg.ldl_factor_ex(torch.tensor(a[0] + a[0].T))
    close(ld, expected.LD.numpy())
    assert places.data.tolist() == expected.pivots.tolist()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("kind", ["float32", "complex64"])
def test_equations_are_solved_from_both_sides(left: bool, kind: str) -> None:
    a = (numbers(2, 3, 3) + 3 * numpy.eye(3)).astype(kind)
    b = numbers(2, 3, 3, seed=1).astype(kind)
    if kind == "complex64":
        a, b = a + 1j * numbers(2, 3, 3, seed=2), b - 1j * numbers(2, 3, 3, seed=3)
    x = F.linalg_solve(ours(a), ours(b), left=left)
    close(ours(a) @ x if left else x @ ours(a), b)
    lu, pivots = F.linalg_lu_factor(ours(a))
    x = F.linalg_lu_solve(lu, pivots, ours(b), left=left, adjoint=True)
    back = a.conj().swapaxes(-1, -2)
    close(back @ x.data if left else x.data @ back, b)
    upper = F.triu(ours(a))
    x = F.linalg_solve_triangular(upper, ours(b), upper=True, left=left)
    close(upper @ x if left else x @ upper, b)


def test_vectors_and_batches_on_the_right_side() -> None:
    a, b = positive(2, 3, 3), numbers(3)
    close(F.linalg_solve(ours(a), ours(b)), numpy.linalg.solve(a, b[:, None])[..., 0])
    close(F.linalg_solve(ours(a[0]), ours(b)), numpy.linalg.solve(a[0], b))
    close(F.linalg_solve(ours(a[:0]), ours(numbers(0, 3, 2))), numpy.zeros((0, 3, 2)))


def test_empty_matrices() -> None:
    none = ours(numpy.zeros((0, 0), "float32"))
    assert F.linalg_inv(none).shape == (0, 0)
    assert F.linalg_det(none).data == 1
    assert F.linalg_cholesky(none).shape == (0, 0)
    assert [t.shape for t in F.linalg_svd(ours(numpy.zeros((3, 0), "float32")))] == [
        *((3, 3), (0,), (0, 0)),
    ]
    assert F.linalg_pinv(ours(numpy.zeros((3, 0), "float32"))).shape == (0, 3)
    assert [t.shape for t in F.linalg_qr(ours(numpy.zeros((0, 3), "float32")))] == [(0, 0), (0, 3)]
    assert F.linalg_matrix_exp(none).shape == (0, 0)


def test_determinants_of_singular_matrices_have_gradients() -> None:
    a = numpy.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], "float32")
    x = ours(a, requires_grad=True)
    F.linalg_det(x).backward()
    cofactors = numpy.array([[4, 4, -4], [-2, -2, 2], [0, 0, 0]], "float32")
    close(x.grad, cofactors)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.linalg_inv(x).sum(),
        lambda f, x: f.linalg_slogdet(x)[1].sum(),
        lambda f, x: f.linalg_cholesky(x).sum(),
        lambda f, x: (f.linalg_eigh(x)[1] ** 4).sum(),
        lambda f, x: (f.linalg_qr(x)[0] ** 3).sum(),
        lambda f, x: f.linalg_svd(x)[1].sum(),
        lambda f, x: f.linalg_matrix_exp(x * 0.1).sum(),
        lambda f, x: f.linalg_pinv(x, atol=None, rtol=None).sum(),
    ],
)
def test_gradients_are_what_small_steps_show(call: Any) -> None:
    a = positive(3, 3).astype("float64")
    step = numbers(3, 3, seed=5).astype("float64")
    step = (step + step.T) * 1e-5
    x = ours(a, requires_grad=True)
    call(F, x).backward()
    moved = call(F, ours(a + step)).data - call(F, ours(a - step)).data
    close((x.grad.data * step).sum() * 2e5, moved * 1e5, 1e-6)


@pytest.mark.parametrize("order", [0, 0.5, 1, 2, 3, float("inf"), float("-inf")])
def test_norms_of_vectors(order: float) -> None:
    a = numbers(3, 4)
    a[0, 1] = 0
    close(F.linalg_vector_norm(ours(a), order, [1]), numpy.linalg.norm(a, order, 1))
    close(F.linalg_vector_norm(ours(a), order), numpy.linalg.norm(a.reshape(-1), order))
    half = CustomTensor(a, dtype="float16")
    assert str(F.linalg_vector_norm(half, order).dtype) == "float16"


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")])
def test_norms_of_matrices(order: Any) -> None:
    a = numbers(2, 3, 4)
    wanted = numpy.linalg.norm(a, order, (2, 0), keepdims=True)
    close(F.linalg_norm(ours(a), order, [2, 0], True), wanted)
    close(F.linalg_matrix_norm(ours(a), order), numpy.linalg.norm(a, order, (1, 2)))


def test_least_squares_have_what_each_driver_gives() -> None:
    a, b = numbers(5, 3), numbers(5, 2, seed=1)
    wanted, rest, _, _ = numpy.linalg.lstsq(a, b)
    for driver in ("gels", "gelsy", "gelsd", "gelss"):
        x, left_over, rank, values = F.linalg_lstsq(ours(a), ours(b), driver=driver)
        close(x, wanted)
        assert rank.shape == ((0,) if driver == "gels" else ())
        assert values.shape == ((3,) if driver in ("gelsd", "gelss") else (0,))
        if driver != "gelsy":
            close(left_over, rest)


def test_float32_is_transformed_in_its_own_precision() -> None:
    a = numbers(3, 8)
    spectrum = F.fft_rfft(ours(a))
    assert str(spectrum.dtype) == "complex64"
    close(spectrum, numpy.fft.rfft(a))
    back = F.fft_irfft(spectrum)
    assert str(back.dtype) == "float32"
    close(back, a)
    close(F.fft_fft2(ours(a), s=[2, 10], norm="ortho"), numpy.fft.fft2(a, [2, 10], norm="ortho"))
    close(F.fft_hfft(spectrum, n=7), numpy.fft.hfft(spectrum.data, 7))
    close(F.fft_fftshift(ours(a), [1]), numpy.fft.fftshift(a, 1))
    close(F.fft_fftfreq(5, 0.5), numpy.fft.fftfreq(5, 0.5))


@pytest.mark.parametrize("size", [6, 7])
def test_gradients_of_real_transforms(size: int) -> None:
    a = numbers(2, size)
    x, tx = ours(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    out = F.fft_irfft(F.fft_rfft(x) ** 2, n=size)
    expected = torch.fft.irfft(torch.fft.rfft(tx) ** 2, n=size)
    (out**2).sum().backward()
    expected.square().sum().backward()
    assert tx.grad is not None
    close(x.grad, tx.grad.numpy(), 1e-2)


SQUARE = "square matrices, also a batch of them, of float32, float64, complex64 or complex128"
ERRORS = [
    (lambda: F.linalg_inv(ours(numpy.zeros((2, 2), "float32"))),
     "cannot compute linalg_inv_ex(float32[2, 2], check_errors=True): inv: the matrix is singular "
     f"(LAPACK's info: 1)\n  expected: {SQUARE}"),
    (lambda: F.linalg_cholesky(ours(-numpy.ones((2, 1, 1), "float32"))),
     "cannot compute linalg_cholesky_ex(float32[2, 1, 1], upper=False, check_errors=True): "
     "cholesky: the matrix is not positive definite (matrix [0] of the batch, LAPACK's info: 1)\n"
     f"  expected: {SQUARE}"),
    (lambda: F.linalg_det(ours(numbers(2, 3))),
     f"cannot compute _linalg_det(float32[2, 3]): 2 x 3 is not square\n  expected: {SQUARE}"),
    (lambda: F.linalg_eigh(ours(numpy.eye(2, dtype="int64"))),
     "cannot compute _linalg_eigh(int64[2, 2], 'L'): matrices of int64 are not factored\n"
     f"  expected: {SQUARE}"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_errors_say_what_would_work(call: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert str(caught.value) == text


@pytest.mark.parametrize("kind", ["float32", "complex64"])
def test_ldl_solves_with_blocks_of_two_rows(kind: str) -> None:
    a = numpy.array([[0, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 4], [0, 1, 4, 0]], kind)
    if kind == "complex64":
        a = a + 1j * (numpy.triu(a, 1) - numpy.tril(a, -1))
    b = numbers(4, 2).astype(kind)
    factor, pivots, _ = F.linalg_ldl_factor_ex(ours(a), hermitian=True)
    assert (pivots.data < 0).any()
    close(a @ F.linalg_ldl_solve(factor, pivots, ours(b), hermitian=True).data, b)


def test_a_permutation_has_no_gradient() -> None:
    p, lower, upper = F.linalg_lu(ours(positive(3, 3), requires_grad=True))
    assert (p.requires_grad, lower.requires_grad, upper.requires_grad) == (False, True, True)


def test_reflections_are_differentiated_one_after_the_other() -> None:
    a, tau, c = numbers(4, 3), numbers(3, seed=1), numbers(4, 2, seed=2)
    mine = [ours(t, requires_grad=True) for t in (a, tau, c)]
    theirs = [torch.tensor(t, requires_grad=True) for t in (a, tau, c)]
    (F.ormqr(*mine) ** 2).sum().backward()
    torch.ormqr(*theirs).square().sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        assert other.grad is not None
        close(one.grad, other.grad.numpy(), 1e-3)


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    scipy.submodule.cache_clear()
    places = ours(numpy.zeros(100, "int64"))
    with pytest.raises(MissingDependency) as caught:
        F.embedding_dense_backward(ours(numbers(100, 4)), places, 5, -1, False)
    assert str(caught.value) == (
        "this computation on the CPU needs scipy.sparse, and SciPy is not installed\n"
        "  expected: the package scipy\n"
        "  try: pip install 'holdfast[compute]'"
    )
