"""Normalizations and dropout: running statistics, narrow floats, gradients of gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import functional as f
from holdfast.compute import random
from holdfast.compute.autograd import tape
from holdfast.compute.tensors.custom_tensor import CustomTensor
from tests.compute.test_reduce import numbers, ours, refusal

F: Any = f
T: Any = torch


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert found is not None
    assert expected is not None
    wide = expected.detach().to(torch.float64).numpy()
    assert numpy.allclose(found.data.astype(numpy.float64), wide, rtol=tolerance, atol=tolerance)


# ---- batch norm


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 200, 300)])
def test_training_moves_the_running_statistics_in_place(shape: tuple[int, ...]) -> None:
    values = numbers(*shape) * 2 + 7
    mean, var = ours(numpy.zeros(3)), ours(numpy.ones(3))
    peers = torch.zeros(3), torch.ones(3)
    arrays = mean.data, var.data
    for _ in range(2):
        found = F.batch_norm(ours(values), None, None, mean, var, True, 0.1, 1e-5, True)
        expected = torch.nn.functional.batch_norm(torch.tensor(values), *peers, training=True)
        close(found, expected)
    close(mean, peers[0])
    close(var, peers[1])
    assert mean.data is arrays[0]
    assert var.data is arrays[1]


def test_evaluating_leaves_the_running_statistics_alone() -> None:
    mean, var = ours([1, 2, 3]), ours([4, 5, 6])
    values, weight, bias = numbers(4, 3, 2), numbers(3), numbers(3, seed=1)
    found = F.native_batch_norm(
        ours(values), ours(weight), ours(bias), mean, var, False, 0.1, 1e-5
    )  # fmt: skip
    expected = T.native_batch_norm(
        *map(torch.tensor, (values, weight, bias)), torch.tensor([1.0, 2, 3]),
        torch.tensor([4.0, 5, 6]), False, 0.1, 1e-5,
    )  # fmt: skip
    close(found[0], expected[0])
    assert found[1].shape == tuple(expected[1].shape) == (0,)
    assert mean.data.tolist() == [1, 2, 3]


def test_instance_norm_averages_the_running_statistics_of_samples() -> None:
    values = numbers(4, 3, 10)
    mean, var = ours(numpy.zeros(3)), ours(numpy.ones(3))
    peers = torch.zeros(3), torch.ones(3)
    found = F.instance_norm(ours(values), None, None, mean, var, True, 0.1, 1e-5, True)
    close(found, torch.nn.functional.instance_norm(torch.tensor(values), *peers))
    close(mean, peers[0])
    close(var, peers[1])


def test_batch_norm_of_a_large_mean_keeps_its_variance() -> None:
    values = numbers(64, 2, 30) + 1000
    found = F._native_batch_norm_legit(ours(values), None, None, True, 0.1, 1e-5)
    exact = values.astype(numpy.float64).var((0, 2))
    assert numpy.allclose(found[2].data, 1 / numpy.sqrt(exact + 1e-5), rtol=1e-4)


# ---- dtypes


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("wide_weight", [False, True])
def test_narrow_floats_are_normalized_in_float32(kind: str, wide_weight: bool) -> None:
    values, weight, bias = numbers(5, 64), numbers(64), numbers(64, seed=1)
    format_of_weight = "float32" if wide_weight else kind
    narrow, wide = (getattr(torch, k) for k in (kind, format_of_weight))
    found = F.native_layer_norm(
        ours(values, kind), [64], ours(weight, format_of_weight), ours(bias, format_of_weight), 1e-5
    )
    expected = torch.native_layer_norm(
        torch.tensor(values).to(narrow), [64], torch.tensor(weight).to(wide),
        torch.tensor(bias).to(wide), 1e-5,
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        assert str(one.dtype) == str(other.dtype).removeprefix("torch.")
        close(one, other, 0.02)


def test_rms_norm_follows_torch() -> None:
    values, weight = numbers(5, 8), numbers(8)
    mine = [ours(x, grad=True) for x in (values, weight)]
    peers = [torch.tensor(x, requires_grad=True) for x in (values, weight)]
    found = F.rms_norm(mine[0], [8], mine[1])
    expected = torch.nn.functional.rms_norm(peers[0], [8], peers[1])
    close(found, expected)
    F.sum(found * found * found).backward()
    (expected**3).sum().backward()
    for one, other in zip(mine, peers, strict=True):
        close(one.grad, other.grad, 1e-4)


# ---- gradients of gradients


def _layer(x: Any, w: Any, b: Any, library: Any) -> Any:
    return library.layer_norm(x, [6], w, b)


def _group(x: Any, w: Any, b: Any, library: Any) -> Any:
    return library.group_norm(x, 2, w, b)


def _batch(x: Any, w: Any, b: Any, library: Any) -> Any:
    return library.batch_norm(x, w, b, None, None, True, 0.1, 1e-5, True)


@pytest.mark.parametrize(
    ("norm", "shape"), [(_layer, (4, 6)), (_group, (3, 6, 5)), (_batch, (4, 6, 2))]
)
def test_gradients_of_gradients_of_normalizations(norm: Any, shape: tuple[int, ...]) -> None:
    values = [numbers(*shape), numbers(6), numbers(6, seed=1)]
    peers = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]
    mine = [ours(v, "float64", grad=True) for v in values]
    first = torch.autograd.grad((norm(*peers, torch) ** 3).sum(), peers, create_graph=True)
    expected = T.autograd.grad(sum((g**2).sum() for g in first), peers)
    found: Any = tape.grad(F.sum(norm(*mine, F) ** 3), mine, create_graph=True)
    squares = [F.sum(g * g) for g in found]
    second = tape.grad(squares[0] + squares[1] + squares[2], mine)
    for one, other in zip(second, expected, strict=True):
        close(one, other, 1e-6)


# ---- dropout


def test_dropout_drops_what_torch_drops_and_sends_gradients_through_the_rest() -> None:
    values = numbers(40, 30)
    torch.manual_seed(3)
    random.manual_seed(3)
    start = ours(values, grad=True)
    found = F.dropout(start, 0.3, True)
    expected = torch.nn.functional.dropout(torch.tensor(values), 0.3)
    close(found, expected)
    F.sum(found).backward()
    assert start.grad is not None
    assert numpy.allclose(start.grad.data, (expected != 0).numpy() / numpy.float32(0.7))


def test_dropout_outside_of_training_is_the_identity() -> None:
    values = ours([1, 2])
    assert F.dropout(values, 0.5, False) is values
    kept, mask = F.native_dropout(values, 0.5, False)
    assert kept.data.tolist() == [1, 2]
    assert mask.data.all()


# ---- errors


def test_errors_say_what_does_not_fit() -> None:
    values = ours(numpy.zeros((2, 3)))
    assert refusal(lambda: F.layer_norm(values, [4])) == (
        "cannot compute native_layer_norm(float32[2, 3], [4], None, None, 1e-05): the last sizes "
        "of the input are not the normalized shape [4]"
    )
    assert refusal(
        lambda: F.batch_norm(values, None, None, None, None, False, 0.1, 1e-5, True)
    ).endswith("outside of training, batch norm needs running_mean and running_var")
    short: CustomTensor = ours([1, 2])
    assert refusal(
        lambda: F.batch_norm(values, short, None, None, None, True, 0.1, 1e-5, True)
    ).endswith("weight has shape [2], for 3 channels")
    with pytest.raises((BadInput, ValueError), match="do not make 2"):
        F.group_norm(values, 2)
