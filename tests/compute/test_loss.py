"""Losses and embeddings: cross entropy in all its forms, gradients of gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from holdfast.compute import functional as f
from tests.compute.test_normalize import close
from tests.compute.test_reduce import numbers, ours, refusal, twice

F: Any = f
T: Any = torch
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def classes(*shape: int, count: int, seed: int = 2) -> Any:
    return numpy.random.default_rng(seed).integers(0, count, shape)


@pytest.mark.parametrize("reduction", _REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 5, 2), (2, 5, 2, 3), (2, 5, 2, 1, 3)])
def test_cross_entropy_with_classes(
    shape: tuple[int, ...], smoothing: float, weighted: bool, reduction: str
) -> None:
    values = numbers(*shape)
    target = classes(*shape[:1], *shape[2:], count=5) if len(shape) > 1 else classes(count=5)
    if target.size > 2:
        target.reshape(-1)[1] = -100
    weight = numpy.abs(numbers(5, seed=1)) if weighted else None
    mine, peer = ours(values, grad=True), torch.tensor(values, requires_grad=True)
    found = F.cross_entropy_loss(
        mine, ours(target, "int64"), None if weight is None else ours(weight),
        _REDUCTIONS[reduction], -100, smoothing,
    )  # fmt: skip
    expected = torch.nn.functional.cross_entropy(
        peer, torch.tensor(target), None if weight is None else torch.tensor(weight),
        reduction=reduction, label_smoothing=smoothing,
    )  # fmt: skip
    close(found, expected)
    F.sum(found * found).backward()
    (expected**2).sum().backward()
    close(mine.grad, peer.grad)


@pytest.mark.parametrize("reduction", _REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 5, 2)])
def test_cross_entropy_with_probabilities(shape: tuple[int, ...], reduction: str) -> None:
    values, weight = numbers(*shape), numpy.abs(numbers(5, seed=1))
    axis = 0 if len(shape) == 1 else 1
    share = torch.tensor(numbers(*shape, seed=3)).softmax(axis)
    mine, peer = ours(values, grad=True), torch.tensor(values, requires_grad=True)
    found = F.cross_entropy_loss(
        mine, ours(share.numpy()), ours(weight), _REDUCTIONS[reduction], -100, 0.1
    )  # fmt: skip
    expected = torch.nn.functional.cross_entropy(
        peer, share, torch.tensor(weight), reduction=reduction, label_smoothing=0.1
    )
    close(found, expected)
    F.sum(found).backward()
    expected.sum().backward()
    close(mine.grad, peer.grad)


def test_ignored_places_count_nothing_even_where_they_are_infinite() -> None:
    values = ours([[-numpy.inf, 0], [-1, -2]])
    assert float(F.nll_loss(values, ours([-100, 1], "int64")).data) == 2
    assert numpy.isnan(F.nll_loss(values, ours([-100, -100], "int64")).data)


_OTHER = torch.tensor(numbers(4, 5, seed=1), dtype=torch.float64)
_ROWS = torch.tensor([0, 4, 2, 2])


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"])
@pytest.mark.parametrize("reduction", _REDUCTIONS)
def test_gradients_of_gradients_of_losses(name: str, reduction: str) -> None:
    target = ours(_OTHER.numpy(), "float64")
    loss = getattr(torch.nn.functional, name)
    twice(
        lambda x: getattr(F, name)(x, target, _REDUCTIONS[reduction]) ** 2,
        lambda x: loss(x, _OTHER, reduction=reduction) ** 2,
        numbers(4, 5).astype(numpy.float64),
    )


def test_gradients_of_gradients_of_entropies() -> None:
    share = ours(_OTHER.sigmoid().numpy(), "float64")
    target = ours(_ROWS.numpy(), "int64")
    values = numbers(4, 5).astype(numpy.float64)
    binary = torch.nn.functional.binary_cross_entropy
    twice(
        lambda x: F.binary_cross_entropy(F.sigmoid(x), share),
        lambda x: binary(x.sigmoid(), _OTHER.sigmoid()),
        values,
    )
    twice(
        lambda x: F.binary_cross_entropy_with_logits(x, share),
        lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, _OTHER.sigmoid()),
        values,
    )
    twice(
        lambda x: F.cross_entropy_loss(x, target),
        lambda x: torch.nn.functional.cross_entropy(x, _ROWS),
        values,
    )


def test_losses_of_bfloat16_are_computed_in_float32() -> None:
    values = ours(numbers(300, 7), "bfloat16")
    found = F.cross_entropy_loss(values, ours(classes(300, count=7), "int64"))
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(numbers(300, 7)), torch.tensor(classes(300, count=7))
    )
    assert str(found.dtype) == "bfloat16"
    close(found, expected, 0.02)


def test_ctc_of_concatenated_targets_with_zero_infinity() -> None:
    logits = torch.tensor(numbers(6, 3, 4))
    targets = torch.tensor([1, 2, 3, 3, 1, 1, 2, 1, 2, 3, 1])
    lengths, counts = [6, 6, 3], [2, 2, 7]
    peer = logits.log_softmax(2).requires_grad_()
    expected = T.nn.functional.ctc_loss(peer, targets, lengths, counts, zero_infinity=True)
    mine = ours(peer.detach().numpy(), grad=True)
    found = F.ctc_loss(mine, ours(targets.numpy(), "int64"), lengths, counts, 0, 1, True)
    close(found, expected)
    expected.backward()
    found.backward()
    close(mine.grad, peer.grad)


# ---- embeddings


@pytest.mark.parametrize("count", [10, 500])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_rows_that_are_looked_up_often_get_the_sum_of_their_gradients(
    count: int, by_frequency: bool
) -> None:
    table, indices = numbers(7, 3), classes(count, 2, count=7)
    mine, peer = ours(table, grad=True), torch.tensor(table, requires_grad=True)
    found = F.embedding(mine, ours(indices, "int64"), 2, by_frequency)
    expected = torch.nn.functional.embedding(
        torch.tensor(indices), peer, 2, scale_grad_by_freq=by_frequency
    )
    F.sum(found * found * found).backward()
    (expected**3).sum().backward()
    close(mine.grad, peer.grad, 1e-4)


# ---- errors


def test_errors_say_what_does_not_fit() -> None:
    values = ours(numpy.zeros((2, 3)))
    assert refusal(lambda: F.nll_loss(values, ours([0, 3], "int64"))) == (
        "cannot compute nll_loss_forward(float32[2, 3], int64[2], None, 1, -100): the target names "
        "a class that is not among 3"
    )
    assert refusal(lambda: F.nll_loss(values, ours([0], "int64"))).endswith(
        "the target has shape [1], the input asks for [2]"
    )
    assert refusal(lambda: F.mse_loss(values, values, 7)).endswith(
        "reduction 7 is unknown; 0 is none, 1 is mean, 2 is sum"
    )
    assert refusal(lambda: F.binary_cross_entropy(values + 2, values)).endswith(
        "all probabilities must be between 0 and 1; for logits there is "
        "binary_cross_entropy_with_logits"
    )
    assert refusal(lambda: F.embedding(values, ours([2], "int64"))).endswith(
        "an index is outside of a table of 2 rows"
    )
