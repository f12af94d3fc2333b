"""Views, copies, joined tensors and factories: the same as torch, gradients too."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.compute import functional as table
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.memory.profile.profiler import memory_profiler
from tests.tolerance import bound

F: Any = table


def ours(array: Any, **options: Any) -> Any:
    return CustomTensor(array, dtype=str(array.dtype), **options)


def numbers(*shape: int) -> numpy.ndarray[Any, Any]:
    return numpy.random.default_rng(0).normal(size=shape).astype("float32")


# name, shape, the same call for torch's functions and for ours
CALLS: list[tuple[str, tuple[int, ...], Callable[[Any, Any], Any]]] = [
    ("view", (2, 6), lambda f, x: x.view(3, -1)),
    ("reshape of a transposed matrix", (2, 6), lambda f, x: f.reshape(x.t(), (4, 3))),
    ("expand", (2, 1, 3), lambda f, x: x.expand(4, -1, 5, 3)),
    ("permute", (2, 3, 4), lambda f, x: f.permute(x, (2, -3, 1))),
    ("transpose", (2, 3, 4), lambda f, x: f.transpose(x, 0, -1)),
    ("movedim", (2, 3, 4), lambda f, x: f.movedim(x, 0, -1)),
    ("movedim of several", (2, 3, 4), lambda f, x: f.movedim(x, (0, 1), (2, 0))),
    ("swapaxes", (2, 3), lambda f, x: f.swapaxes(x, 0, 1)),
    ("adjoint", (2, 3), lambda f, x: f.adjoint(x)),
    ("slice", (5, 7), lambda f, x: x[1:, ::2]),
    ("select", (5, 7), lambda f, x: f.select(x, -1, -2)),
    ("narrow", (5, 7), lambda f, x: f.narrow(x, 1, -3, 2)),
    ("diagonal", (4, 3, 5), lambda f, x: f.diagonal(x, -1, 2, 0)),
    ("diagonal beyond the corner", (2, 3), lambda f, x: f.diagonal(x, 7)),
    ("unfold", (3, 7), lambda f, x: x.unfold(1, 3, 2)),
    ("as_strided", (3, 4), lambda f, x: f.as_strided(x, (2, 3), (1, 2), 1)),
    ("as_strided of a view", (4, 4), lambda f, x: f.as_strided(x[1:], (2, 2), (1, 1))),
    ("as_strided of a transposed view", (3, 4), lambda f, x: f.as_strided(x.t(), (5,), (2,), 0)),
    ("squeeze", (1, 3, 1), lambda f, x: f.squeeze(x)),
    ("squeeze of one", (1, 3, 1), lambda f, x: f.squeeze(x, -1)),
    ("unsqueeze", (3,), lambda f, x: f.unsqueeze(x, -2)),
    ("flatten", (2, 3, 4), lambda f, x: f.flatten(x, 1)),
    ("flatten of a number", (), lambda f, x: f.flatten(x)),
    ("unflatten", (2, 6), lambda f, x: f.unflatten(x, 1, (2, -1))),
    ("ravel", (2, 3), lambda f, x: f.ravel(x)),
    ("tile", (2, 3), lambda f, x: f.tile(x, (2, 1, 2))),
    ("repeat", (2, 3), lambda f, x: x.repeat(2, 1, 3)),
    ("repeat no times", (2, 3), lambda f, x: x.repeat(0, 2)),
    ("flip", (2, 3), lambda f, x: f.flip(x, (0, -1))),
    ("fliplr", (2, 3), lambda f, x: f.fliplr(x)),
    ("roll", (2, 3), lambda f, x: f.roll(x, (1, -2), (0, 1))),
    ("roll of all", (2, 3), lambda f, x: f.roll(x, 4)),
    ("rot90", (2, 3, 4), lambda f, x: f.rot90(x, 3, (0, 2))),
    ("diag of a vector", (3,), lambda f, x: f.diag(x, -1)),
    ("diag of a matrix", (3, 4), lambda f, x: f.diag(x, 1)),
    ("diagflat", (2, 2), lambda f, x: f.diagflat(x, 1)),
    ("diag_embed", (2, 3), lambda f, x: f.diag_embed(x, 1, 0, 2)),
    ("atleast_3d", (3,), lambda f, x: f.atleast_3d(x)),
    ("cat", (2, 3), lambda f, x: f.cat([x, x * 2, x[:1]], 0)),
    ("stack", (2, 3), lambda f, x: f.stack([x, x * x], -1)),
    ("hstack", (3,), lambda f, x: f.hstack([x, x])),
    ("vstack", (3,), lambda f, x: f.vstack([x, x])),
    ("dstack", (3,), lambda f, x: f.dstack([x, x])),
    ("column_stack", (3,), lambda f, x: f.column_stack([x, x])),
    ("split", (7, 2), lambda f, x: f.cat(list(f.split(x, 3))[::-1], 0)),
    ("chunk", (7, 2), lambda f, x: f.cat(list(f.chunk(x, 3))[1:], 0)),
    ("tensor_split", (7, 2), lambda f, x: f.cat(list(f.tensor_split(x, 3))[::2], 0)),
    ("tensor_split at places", (7, 2), lambda f, x: f.tensor_split(x, (2, 5))[1]),
    ("hsplit", (2, 6), lambda f, x: f.hsplit(x, 3)[1]),
    ("unbind", (3, 2), lambda f, x: f.unbind(x, 1)[1]),
    ("select_scatter", (3, 2), lambda f, x: f.select_scatter(x, x[0] * 2, 0, 1)),
    ("slice_scatter", (5, 2), lambda f, x: f.slice_scatter(x, x[:2] * 2, 0, 1, 4, 2)),
    ("diagonal_scatter", (3, 3), lambda f, x: f.diagonal_scatter(x, x[0] * 2)),
    ("meshgrid", (3,), lambda f, x: f.meshgrid([x, x[:2]], indexing="xy")[1]),
    ("broadcast_to", (3, 1), lambda f, x: f.broadcast_to(x, (2, 3, 4))),
    ("as double", (3, 2), lambda f, x: x.double()),
    ("clone", (3, 2), lambda f, x: f.clone(x)),
]


@pytest.mark.parametrize(("shape", "call"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_result_and_gradient_are_torchs(shape: Any, call: Any) -> None:
    array = numbers(*shape)
    theirs = torch.from_numpy(array.copy()).requires_grad_()
    mine = ours(array, requires_grad=True)
    expected, got = call(torch, theirs), call(F, mine)
    assert numpy.array_equal(got.numpy(), expected.detach().numpy())
    seed = numpy.random.default_rng(1).normal(size=got.shape).astype(got.dtype)
    expected.backward(torch.from_numpy(seed))
    got.backward(ours(seed))
    assert mine.grad is not None
    assert theirs.grad is not None
    numpy.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x.view(12),
    lambda x: x.reshape(2, 6),
    lambda x: F.permute(x, (1, 0)),
    lambda x: x.t(),
    lambda x: F.slice(x, 1, 1, 3),
    lambda x: F.select(x, 0, 1),
    lambda x: F.unsqueeze(x, 0),
    lambda x: F.diagonal(x, 1),
    lambda x: F.unfold(x, 1, 2, 2),
    lambda x: F.as_strided(x, (2, 2), (4, 1), 1),
    lambda x: F.expand(x, (3, 4)),
    lambda x: F.split(x, 2)[1],
    lambda x: F.unbind(x, 1)[2],
    lambda x: F.detach(x),
    lambda x: F.movedim(x, 0, 1),
    lambda x: F.chunk(x, 2, 1)[0],
    lambda x: F.narrow(x, 0, 1, 1),
]


@pytest.mark.parametrize("view", VIEWS)
def test_view_writes_into_the_tensor_it_is_a_view_of(view: Any) -> None:
    whole = ours(numbers(3, 4))
    part = view(whole)
    part.fill_(7)
    assert (whole.numpy() == 7).sum() == part.numel()


def test_copy_of_a_view_has_memory_of_its_own() -> None:
    whole = ours(numbers(3, 4))
    for made in (
        F.view_copy(whole, [12]),
        F.t_copy(whole),
        F.expand_copy(whole, (3, 4)),
        whole.clone(),
    ):
        made.fill_(7)
    assert not (whole.numpy() == 7).any()


def test_spread_out_view_cannot_be_written_to() -> None:
    spread = F.expand(ours(numbers(1, 4)), (3, 4))
    assert not spread.numpy().flags.writeable


def test_view_that_needs_a_copy_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        ours(numbers(2, 3)).t().view(6)
    assert str(caught.value) == (
        "cannot compute view(float32[3, 2], [6]): [3, 2] with strides [1, 3] cannot be viewed as "
        "[6] without a copy; use reshape\n"
        "  expected: view(Tensor(a) self, int[] size) -> Tensor(a)"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.view(5),
        lambda x: x.view(-1, -1),
        lambda x: F.select(x, 0, 3),
        lambda x: F.slice(x, 0, 0, 2, -1),
        lambda x: F.narrow(x, 0, 2, 2),
        lambda x: F.expand(x, (2, 4)),
        lambda x: F.permute(x, (0, 0)),
        lambda x: F.squeeze(x, 2),
        lambda x: F.as_strided(x, (4, 4), (4, 1)),
        lambda x: F.as_strided(x, (2,), (1,), -1),
        lambda x: F.cat([x, F.select(x, 0, 0)]),
        lambda x: F.stack([]),
        lambda x: F.split_with_sizes(x, [1, 1]),
        lambda x: F.diagonal(x, 0, 1, 1),
        lambda x: F.unfold(x, 0, 4, 1),
        lambda x: F.flip(x, (0, 0)),
        lambda x: F.hsplit(x, 3),
        lambda x: F.arange(0, 5, -1),
        lambda x: F.zeros([-1]),
    ],
)
def test_what_torch_refuses_is_refused(call: Any) -> None:
    with pytest.raises(HoldfastError):
        call(ours(numbers(3, 4)))


def test_as_strided_counts_its_offset_from_the_beginning_of_the_memory() -> None:
    array = numbers(4, 4)
    part = F.select(ours(array), 0, 2)
    theirs = torch.from_numpy(array)[2]
    for offset in (None, 0, 5):
        got = F.as_strided(part, (2, 3), (1, 2), offset)
        expected = torch.as_strided(theirs, (2, 3), (1, 2), offset)
        assert numpy.array_equal(got.numpy(), expected.numpy())


def test_empty_vector_fits_between_tensors_of_any_shape() -> None:
    made = F.cat([ours(numbers(0)), ours(numbers(2, 3)), ours(numbers(0))], 1)
    assert made.shape == (2, 3)


def test_joined_dtypes_are_promoted_as_in_torch() -> None:
    pairs = [
        ("int64", "float16"),
        ("bool", "uint8"),
        ("float32", "float64"),
        ("int32", "complex64"),
    ]
    for one, other in pairs:
        found = F.cat([F.zeros([2], dtype=one), F.ones([2], dtype=other)])
        expected = torch.promote_types(getattr(torch, one), getattr(torch, other))
        assert f"torch.{found.dtype.name}" == str(expected)


FACTORIES: list[Callable[[Any, Any], Any]] = [
    lambda f, d: f.arange(5, dtype=d("int32")),
    lambda f, d: f.arange(1.5, 9, 2.6, dtype=d("int32")),
    lambda f, d: f.arange(1.5, 9, 2.6, dtype=d("int64")),
    lambda f, d: f.arange(1, 2, 0.3),
    lambda f, d: f.arange(5, 0, -2),
    lambda f, d: f.linspace(-3, 4, 50, dtype=d("int64")),
    lambda f, d: f.linspace(-2, 1.3, 50, dtype=d("float16")),
    lambda f, d: f.linspace(0, 1, 7, dtype=d("float64")),
    lambda f, d: f.logspace(0, 2, 4, 2.0),
    lambda f, d: f.eye(3, 5, dtype=d("bool")),
    lambda f, d: f.full((2, 3), 7),
    lambda f, d: f.full((2,), 2.5),
    lambda f, d: f.full((2,), True),
    lambda f, d: f.zeros((0, 3)),
    lambda f, d: f.scalar_tensor(3),
]


@pytest.mark.parametrize("make", FACTORIES)
def test_factory_makes_torchs_numbers(make: Any) -> None:
    expected = make(torch, lambda name: getattr(torch, name)).numpy()
    got = make(F, lambda name: name).numpy()
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    numpy.testing.assert_allclose(got, expected, rtol=bound("float32"))


def test_cast_takes_the_real_part_of_complex_numbers() -> None:
    made = F._to_copy(ours(numpy.array([1 + 2j, -3j], "complex64")), dtype="float32")
    assert made.tolist() == [1.0, 0.0]


def test_complex_numbers_and_pairs_share_memory() -> None:
    whole = ours(numpy.zeros((2, 2), "complex64"))
    F.view_as_real(whole)[..., 1].fill_(3)
    assert (whole.numpy() == 3j).all()
    again = F.view_as_complex(F.view_as_real(whole))
    again.fill_(1)
    assert (whole.numpy() == 1).all()


@pytest.mark.parametrize("name", ["contiguous", "real", "positive", "alias"])
def test_a_view_is_one_while_memory_is_watched(name: str) -> None:
    x = ours(numbers(4))
    with memory_profiler.record():
        assert numpy.shares_memory(table.packet(name)(x).data, x.data)


@pytest.mark.parametrize("name", ["cat", "stack", "block_diag"])
def test_what_was_put_together_is_not_kept_for_the_gradient(name: str) -> None:
    start = ours(numbers(2, 3), requires_grad=True)
    parts = [start * 2, start * 3]
    kept = [weakref.ref(part) for part in parts]
    made = table.packet(name)(parts)
    del parts
    assert [known() for known in kept] == [None, None]
    made.sum().backward()
    assert start.grad.tolist() == [[5.0] * 3] * 2
