"""Losses on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from holdfast.compute.ops.layers.loss import MEAN, NONE, SUM
from tests.compute.opencl.checks import MAPPINGS, on, same

pytestmark = pytest.mark.opencl
WAYS = pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
NEAR: Any = {"rtol": 1e-5, "atol": 1e-5}


def floats(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def shares(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).random(shape, numpy.float32)


def slope(reduction: int, *shape: int) -> Any:
    return floats(*shape, seed=9) if reduction == NONE else numpy.array(0.7, numpy.float32)


@WAYS
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mse_loss", ()),
        ("smooth_l1_loss", (0.5,)),
        ("smooth_l1_loss", (0.0,)),
        ("huber_loss", (0.5,)),
        ("soft_margin_loss", ()),
    ],
)
def test_losses_of_a_distance(name: str, settings: Any, reduction: int) -> None:
    one, other = floats(20, 33), floats(20, 33, seed=1)
    same(name, one, other, reduction, *settings, **NEAR)
    grad = slope(reduction, 20, 33)
    same(f"{name}_backward", grad, one, other, reduction, *settings, **NEAR)
    half = one.astype(numpy.float16)
    same(name, half, other.astype(numpy.float16), reduction, *settings, **NEAR)


def test_sizes_meet() -> None:
    same("mse_loss", floats(20, 33), floats(33), MEAN, **NEAR)


@WAYS
@pytest.mark.parametrize("weighted", [True, False])
def test_binary_cross_entropy(reduction: int, weighted: bool) -> None:
    weight = shares(33, seed=2) if weighted else None
    one, other = shares(20, 33), shares(20, 33, seed=1)
    one[0, :2] = 0, 1
    same("binary_cross_entropy", one, other, weight, reduction, **NEAR)
    grad = slope(reduction, 19, 33)
    same("binary_cross_entropy_backward", grad, one[1:], other[1:], weight, reduction, **NEAR)
    positive = shares(33, seed=3) if weighted else None
    name = "binary_cross_entropy_with_logits"
    same(name, floats(20, 33) * 50, other, weight, positive, reduction, **NEAR)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_what_is_no_probability_gives_nan(mapping: str) -> None:
    values = numpy.array([0.5, 1.5], numpy.float32)
    assert math.isnan(on(mapping, "binary_cross_entropy", values, numpy.ones_like(values)))


@WAYS
@pytest.mark.parametrize("weighted", [True, False])
def test_negative_log_likelihood(reduction: int, weighted: bool) -> None:
    weight = shares(7, seed=2) if weighted else None
    places = numpy.random.default_rng(0).integers(0, 7, 50)
    places[3] = 5
    for shape, target, name in (
        ((50, 7), places, "nll_loss"),
        ((7,), places[3], "nll_loss"),
        ((2, 7, 5, 5), places.reshape(2, 5, 5), "nll_loss2d"),
    ):
        values, target = floats(*shape), numpy.asarray(target)
        args = (values, target, weight, reduction, 5)
        _, total = same(f"{name}_forward", *args, **NEAR)
        grad = slope(reduction, *target.shape)
        same(f"{name}_backward", grad, *args, total, **NEAR)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_class_that_is_not_there_gives_nan(mapping: str) -> None:
    args = (floats(3, 4), numpy.array([0, 4, 1]), None, NONE, -100)
    losses, _ = on(mapping, "nll_loss_forward", *args)
    assert numpy.isnan(losses).tolist() == [False, True, False]
