"""Layer, group and RMS norm on the OpenCL engine, held against NumPy's, in both mappings."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops import OPS
from tests.compute.opencl.checks import same

pytestmark = pytest.mark.opencl
ALL = [True, True, True]


def floats(*shape: int, seed: int = 0, kind: str = "float32") -> Any:
    made = numpy.random.default_rng(seed).standard_normal(shape)
    return (made * 2 + 1).astype(dtypes.DTYPES[kind])


def on_host(name: str, *args: Any) -> Any:
    return run(OPS[name], ENGINES["numpy"], list(args), {})


@pytest.mark.parametrize("shape", [(7, 10), (3, 5, 64), (2, 1000), (5, 3001)])
def test_layer_norm_of_rows(shape: tuple[int, ...]) -> None:
    width = shape[-1]
    weight, bias = floats(width, seed=1), floats(width, seed=2)
    same("native_layer_norm", floats(*shape), [width], weight, bias, 1e-5, atol=1e-5)
    same("native_layer_norm", floats(*shape), [width], None, None, 1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_layer_norm_of_other_dtypes_and_layouts(kind: str) -> None:
    weight, bias = floats(6, 8, seed=1, kind=kind), floats(6, 8, seed=2, kind=kind)
    same("native_layer_norm", floats(5, 6, 8, kind=kind), [6, 8], weight, bias, 1e-5, atol=2e-2)
    turned = floats(8, 5, 6, kind=kind).transpose(1, 2, 0)
    same("native_layer_norm", turned, [6, 8], weight, bias, 1e-5, atol=2e-2)


def test_layer_norm_of_narrow_numbers_by_wide_parameters() -> None:
    same(
        "native_layer_norm", floats(5, 32, kind="bfloat16"), [32], floats(32), None, 1e-5, atol=2e-2
    )


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
def test_gradients_of_layer_norm(kind: str) -> None:
    values, weight, bias = (floats(*s, kind=kind) for s in ((9, 4, 33), (33,), (33,)))
    _, mean, rstd = on_host("native_layer_norm", values, [33], weight, bias, 1e-5)
    grad = floats(9, 4, 33, seed=3, kind=kind)
    near: Any = {"rtol": 1e-4, "atol": 2e-4 if kind != "float16" else 0.2}
    name = "native_layer_norm_backward"
    same(name, grad, values, [33], mean, rstd, weight, bias, ALL, **near)
    same(name, grad, values, [33], mean, rstd, None, None, ALL, **near)
    same(name, grad, values, [33], mean, rstd, weight, bias, [False, True, False], **near)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_rms_norm_and_its_gradients(kind: str) -> None:
    near: Any = {"rtol": 1e-4, "atol": 1e-4 if kind != "bfloat16" else 0.3}
    values, weight = floats(9, 4, 40, kind=kind), floats(40, seed=1, kind=kind)
    same("_fused_rms_norm", values, [40], weight, None, **near)
    _, rstd = same("_fused_rms_norm", values, [40], None, 1e-5, **near)
    grad = floats(9, 4, 40, seed=3, kind=kind)
    same("_fused_rms_norm_backward", grad, values, [40], rstd, weight, [True, True], **near)
    same("_fused_rms_norm_backward", grad, values, [40], rstd, None, [True, False], **near)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("size", [(), (5,), (6, 6)])
def test_group_norm_and_its_gradients(groups: int, size: tuple[int, ...]) -> None:
    shape, positions = (3, 8, *size), int(numpy.prod(size))
    values, weight, bias = floats(*shape), floats(8, seed=1), floats(8, seed=2)
    sizes = (3, 8, positions, groups)
    near: Any = {"rtol": 1e-4, "atol": 1e-4}
    same("native_group_norm", values, None, None, *sizes, 1e-5, **near)
    _, mean, rstd = same("native_group_norm", values, weight, bias, *sizes, 1e-5, **near)
    if positions * 8 // groups == 1:
        return  # a group of one number: its gradient is what rounding leaves
    grad = floats(*shape, seed=3)
    for scale in (weight, None):
        same("native_group_norm_backward", grad, values, mean, rstd, scale, *sizes, ALL, **near)


def test_group_norm_of_channels_last_and_of_half() -> None:
    turned = floats(2, 6, 6, 8).transpose(0, 3, 1, 2)
    same("native_group_norm", turned, floats(8), None, 2, 8, 36, 4, 1e-5, atol=1e-5)
    half = floats(2, 8, 6, 6, kind="float16")
    same("native_group_norm", half, floats(8, kind="float16"), None, 2, 8, 36, 4, 1e-5, atol=2e-2)


def test_nothing_is_normalized_too() -> None:
    same("native_layer_norm", numpy.empty((0, 4), numpy.float32), [4], None, None, 1e-5)
    same("native_group_norm", numpy.empty((0, 4, 3), numpy.float32), None, None, 0, 4, 3, 2, 1e-5)
