"""Convolutions on the OpenCL engine, in both mappings, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.engines.opencl.conv import convolution
from holdfast.compute.ops import OPS
from tests.compute.opencl import checks
from tests.compute.opencl.test_matrix import numbers
from tests.tolerance import bound

# input, weight, stride, padding, dilation, transposed, output padding, groups
CASES = {
    "one dimension": ((2, 3, 20), (4, 3, 3), 1, 1, 1, False, 0, 1),
    "two dimensions": ((2, 3, 9, 11), (4, 3, 3, 3), 1, 1, 1, False, 0, 1),
    "three dimensions": ((2, 3, 5, 6, 7), (4, 3, 2, 3, 3), (1, 2, 1), (0, 1, 2), 1, False, 0, 1),
    "many channels": ((2, 32, 20, 21), (40, 32, 3, 3), 1, 1, 1, False, 0, 1),
    "strides": ((2, 20, 21, 19), (24, 20, 3, 3), 2, 1, 1, False, 0, 1),
    "dilation": ((1, 20, 21, 19), (24, 20, 3, 3), (1, 2), (2, 0), (2, 3), False, 0, 1),
    "groups": ((2, 24, 12, 13), (36, 8, 3, 3), 1, 1, 1, False, 0, 3),
    "one channel a group": ((2, 12, 12, 70), (12, 1, 3, 3), 1, 1, 1, False, 0, 12),
    "one channel a group, strides": ((2, 6, 12, 13), (12, 1, 3, 3), 2, 1, 1, False, 0, 6),
    "a window of one number": ((3, 20, 12, 13), (24, 20, 1, 1), 1, 0, 1, False, 0, 1),
    "a window of one number, groups": ((3, 20, 12, 13), (24, 10, 1, 1), 1, 0, 1, False, 0, 2),
    "a window of one number, strides": ((3, 20, 12, 13), (24, 20, 1, 1), 2, 0, 1, False, 0, 1),
    "more padding than window": ((1, 2, 4, 4), (3, 2, 2, 2), 1, 3, 1, False, 0, 1),
    "transposed": ((2, 20, 9, 11), (20, 12, 3, 3), 1, 1, 1, True, 0, 1),
    "transposed, strides": ((2, 20, 9, 11), (20, 12, 3, 3), 2, 1, 1, True, 1, 1),
    "transposed, groups": ((2, 20, 9, 11), (20, 12, 4, 4), 2, 1, 1, True, 0, 2),
    "transposed, one channel a group": ((2, 4, 9, 11), (4, 1, 4, 4), 3, 1, 1, True, 2, 4),
    "transposed, a window of one number": ((2, 20, 9, 11), (20, 12, 1, 1), 1, 0, 1, True, 0, 2),
    "transposed, dilation": ((2, 20, 9, 11), (20, 12, 2, 3), (2, 1), 1, (1, 3), True, 0, 1),
}


def same(name: str, *args: Any, **kwargs: Any) -> Any:
    near = bound("float32", 1024, 16)  # a gradient adds as many products of two normal numbers
    return checks.same(name, *args, rtol=1e-4, atol=near, **kwargs)


def listed(value: Any, count: int) -> list[int]:
    return [value] * count if isinstance(value, int) else list(value)


def arguments(case: str, kind: Any = "float32") -> tuple[Any, Any, Any, list[Any]]:
    """Input, weight, bias, settings."""
    x, w, *settings, transposed, extra, groups = CASES[case]
    count = len(w) - 2
    channels = w[1] * groups if transposed else w[0]
    rest = [*(listed(s, count) for s in settings), transposed, listed(extra, count), groups]
    return numbers(*x, kind=kind), numbers(*w, kind=kind), numbers(channels, kind=kind), rest


def check_all(case: str, x: Any, w: Any, b: Any, settings: list[Any]) -> None:
    """Forward, and all three gradients."""
    out = same("convolution", x, w, b, *settings)
    grad = numbers(*out.shape, kind=out.dtype, seed=3)
    same("convolution_backward", grad, x, w, [len(b)], *settings, [True, True, True])


@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_their_gradients_are_as_in_numpy(case: str):
    check_all(case, *arguments(case))


@pytest.mark.parametrize("case", ["two dimensions", "one channel a group", "many channels"])
def test_a_bias_may_have_any_stride(case: str):
    x, w, b, settings = arguments(case)
    same("convolution", x, w, numbers(len(b), 3)[:, 1], *settings)


@pytest.mark.parametrize("case", ["many channels", "strides", "groups", "transposed, strides"])
def test_a_small_workspace_is_used_part_by_part(case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", {"cpu": 100_000, "gpu": 100_000})
    check_all(case, *arguments(case))


@pytest.mark.parametrize("kind", ["float16", ml_dtypes.bfloat16, "float64"], ids=str)
@pytest.mark.parametrize("case", ["many channels", "one channel a group", "transposed, strides"])
def test_every_float_is_convolved(case: str, kind: Any):
    x, w, b, settings = arguments(case, kind)
    checks.same("convolution", x, w, b, *settings, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("case", ["many channels", "a window of one number", "strides"])
def test_channels_may_lie_side_by_side(case: str):
    x, w, b, settings = arguments(case)
    last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    check_all(case, last, w.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), b, settings)
    check_all(case, x[:, :, ::-1][:, :, ::-1], w, b, settings)


def test_parts_of_larger_arrays_are_convolved():
    x, w, b, settings = arguments("many channels")
    same("convolution", x[:, ::2, 1:, 2:-1], w[::2, :16], b[::2], *settings)


def test_integers_are_convolved():
    x, w, b, settings = arguments("strides", "int32")
    same("convolution", x, w, b, *settings)
    x, w, b, settings = arguments("two dimensions", "int64")
    same("convolution", x, w, b, *settings)


def test_only_the_gradients_that_are_asked_for_are_computed():
    x, w, _, settings = arguments("two dimensions")
    grad = numbers(2, 4, 9, 11)
    for mask in ([True, False, False], [False, True, False], [False, False, True]):
        same("convolution_backward", grad, x, w, [4], *settings, mask)


def test_an_empty_batch_has_an_empty_result():
    x, w, b, settings = arguments("two dimensions")
    out = same("convolution", x[:0], w, b, *settings)
    same("convolution_backward", out, x[:0], w, [4], *settings, [True, True, True])


@pytest.mark.parametrize(
    ("x", "w", "b", "settings"),
    [
        (
            numbers(1, 3, 5, 5),
            numbers(4, 2, 3, 3),
            None,
            [[1, 1], [0, 0], [1, 1], False, [0, 0], 1],
        ),
        (
            numbers(1, 3, 2, 2),
            numbers(4, 3, 3, 3),
            None,
            [[1, 1], [0, 0], [1, 1], False, [0, 0], 1],
        ),
        (numbers(1, 3, 5, 5), numbers(4, 3, 3, 3), numbers(3), [[1], [0], [1], False, [0], 1]),
        (numbers(1, 3, 5, 5), numbers(3, 4, 3, 3), None, [[2], [0], [1], True, [2], 1]),
        (numbers(1, 3, 5), numbers(4, 3, 3, 3), None, [[1], [0], [1], False, [0], 1]),
        (numbers(1, 3, 5), numbers(4, 3, 3), None, [[0], [0], [1], False, [0], 1]),
        (numbers(1, 3, 5), numbers(4, 3, 3), None, [[1], [-1], [1], False, [0], 1]),
        (numbers(1, 3, 5), numbers(4, 3, 3, kind="float64"), None, [[1], [0], [1], False, [0], 1]),
    ],
)
def test_what_does_not_fit_is_refused_as_by_numpy(x: Any, w: Any, b: Any, settings: list[Any]):
    with pytest.raises(BadInput) as expected:
        run(OPS["convolution"], ENGINES["numpy"], [x, w, b, *settings], {})
    with pytest.raises(BadInput) as found:
        checks.on("cpu", "convolution", x, w, b, *settings)
    assert str(found.value) == str(expected.value)
