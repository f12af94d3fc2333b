"""Fake quantization and int8 products, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.engines.opencl.conv import convolution
from holdfast.compute.ops import OPS
from tests.compute.opencl import checks
from tests.compute.opencl.checks import same
from tests.compute.opencl.test_matrix import numbers


def int8(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng([seed, *shape]).integers(-128, 128, shape).astype(numpy.int8)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (5, 33, 9), (70, 129, 65), (3, 2000, 4), (130, 8, 70)]
)
def test_products_of_int8_are_exact(shape: tuple[int, int, int]):
    m, k, n = shape
    same("_int_mm", int8(m, k), int8(k, n))
    same("_int_mm", int8(m, k), int8(n, k).T)
    same("_int_mm", int8(k, m).T, int8(2 * k, n)[::2])


def test_the_largest_sums_are_exact():
    low = numpy.full((4, 4000), -128, numpy.int8)
    same("_int_mm", low, low.T.copy())


def test_empty_products_of_int8_are_zero():
    same("_int_mm", int8(3, 0), int8(0, 4))
    same("_int_mm", int8(0, 3), int8(3, 4))


@pytest.mark.parametrize("zero_point", [0, 5, -128])
@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "dilation", "groups"),
    [
        ((2, 3, 9, 11), (4, 3, 3, 3), 1, 1, 1, 1),
        ((2, 20, 12, 13), (24, 20, 3, 3), 2, 1, 1, 1),
        ((1, 24, 12, 13), (36, 8, 3, 2), 1, 2, 2, 3),
        ((2, 8, 9, 9), (16, 8, 1, 1), 1, 0, 1, 1),
    ],
)
def test_convolutions_of_int8_are_exact(
    x: Any, w: Any, stride: int, padding: int, dilation: int, groups: int, zero_point: int
):
    settings = [[value] * 2 for value in (stride, padding, dilation)]
    same("holdfast_int_conv2d", int8(*x), int8(*w), *settings, groups, zero_point)


def test_a_small_workspace_is_used_part_by_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", {"cpu": 10_000, "gpu": 10_000})
    settings = [[1, 1]] * 3
    same("holdfast_int_conv2d", int8(2, 20, 12, 13), int8(24, 20, 3, 3), *settings, 1, 3)


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", ml_dtypes.bfloat16], ids=str)
def test_numbers_are_rounded_to_levels(kind: Any):
    x = numbers(9, 11, kind=kind) * numpy.dtype(kind).type(4)
    _, inside = same("fake_quantize_per_tensor_affine_cachemask", x, 0.05, 3, -128, 127)
    assert not inside.all()
    same("fake_quantize_per_tensor_affine_cachemask_backward", numbers(9, 11, kind=kind), inside)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_every_channel_may_have_its_own_levels(axis: int):
    x = numbers(7, 8, 9) * 4
    scale = numpy.linspace(0.01, 0.1, x.shape[axis], dtype="float32")
    zero = numpy.arange(x.shape[axis], dtype="int32")
    name = "fake_quantize_per_channel_affine_cachemask"
    _, inside = same(name, x, scale, zero, axis, 0, 255)
    same(f"{name}_backward", x, inside)


def test_what_is_no_number_stays_none():
    x = numpy.array([numpy.nan, numpy.inf, -numpy.inf, 0, 0.5], "float32")
    same("fake_quantize_per_tensor_affine_cachemask", x, 1.0, 0, -128, 127)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("_int_mm", (int8(2, 3), int8(4, 5))),
        ("_int_mm", (numbers(2, 3), int8(3, 5))),
        ("fake_quantize_per_tensor_affine_cachemask", (numbers(3), 0.0, 0, 0, 255)),
        ("fake_quantize_per_tensor_affine_cachemask", (numbers(3), 0.1, 0, 9, 9)),
        ("holdfast_int_conv2d", (int8(1, 3, 4, 4), int8(4, 2, 3, 3), *[[1, 1]] * 3, 1, 0)),
        ("holdfast_int_conv2d", (int8(3, 4, 4), int8(4, 3, 3, 3), *[[1, 1]] * 3, 1, 0)),
    ],
)
def test_what_does_not_fit_is_refused_as_by_numpy(name: str, args: tuple[Any, ...]):
    with pytest.raises(BadInput) as expected:
        run(OPS[name], ENGINES["numpy"], list(args), {})
    with pytest.raises(BadInput) as found:
        checks.on("cpu", name, *args)
    assert str(found.value) == str(expected.value)
