"""Batch norm on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.compute.engine import ENGINES, run, strict
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import MAPPINGS, close, engine, same, up

pytestmark = pytest.mark.opencl
SHAPES = [(6, 5), (6, 5, 7), (4, 5, 9, 11)]
NEAR: Any = {"rtol": 1e-4, "atol": 1e-4}


def floats(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32) * 2 + 1


def parameters() -> tuple[Any, Any]:
    return floats(5, seed=1), floats(5, seed=2)


def running() -> tuple[Any, Any]:
    return floats(5, seed=3), numpy.abs(floats(5, seed=4)) + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_running_statistics_are_used(shape: tuple[int, ...]) -> None:
    args = (*parameters(), *running())
    same("_native_batch_norm_legit_no_training", floats(*shape), *args, 0.1, 1e-5, **NEAR)
    same("native_batch_norm", floats(*shape), None, None, *running(), False, 0.1, 1e-5, **NEAR)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_running_statistics_follow_in_place(mapping: str, shape: tuple[int, ...]) -> None:
    for name in ("native_batch_norm", "_native_batch_norm_legit"):
        host = [floats(*shape), *parameters(), *running()]
        there = [up(mapping, a) for a in host]
        expected = run(OPS[name], ENGINES["numpy"], [*host, True, 0.1, 1e-5], {})
        with strict():
            found = run(OPS[name], engine(mapping), [*there, True, 0.1, 1e-5], {})
        for one, other in zip((*found, *there), (*expected, *host), strict=True):
            close(engine(mapping).download(one), other, name, **NEAR)


def test_statistics_of_the_batch_alone() -> None:
    name = "_native_batch_norm_legit.no_stats"
    same(name, floats(4, 5, 30), *parameters(), True, 0.1, 1e-5, **NEAR)
    same(name, floats(4, 30, 5).transpose(0, 2, 1), *parameters(), True, 0.1, 1e-5, **NEAR)
    half = floats(4, 5, 30).astype(numpy.float16)
    same(name, half, *parameters(), True, 0.1, 1e-5, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("train", [True, False])
def test_gradients(shape: tuple[int, ...], train: bool) -> None:
    values, grad = floats(*shape), floats(*shape, seed=5)
    over = tuple(d for d in range(len(shape)) if d != 1)
    saved = values.mean(over), 1 / numpy.sqrt(values.var(over) + 1e-5)
    for weight in (parameters()[0], None):
        args = (grad, values, weight, *running(), *saved, train, 1e-5)
        same("native_batch_norm_backward", *args, [True, True, True], **NEAR)
    same("native_batch_norm_backward", *args, [True, False, False], **NEAR)


def test_the_form_with_a_reserve() -> None:
    values = floats(4, 5, 30)
    args = (*parameters(), *running(), 0.1, 1e-5)
    _, mean, rstd, _ = same("_batch_norm_with_update", values, *args, **NEAR)
    reserve = numpy.empty(0, numpy.uint8)
    args = (floats(4, 5, 30, seed=6), values, parameters()[0], *running(), mean, rstd, True, 1e-5)
    same("batch_norm_backward", *args, [True, True, True], reserve, **NEAR)
