"""Attention on the OpenCL engine, in both mappings, against the NumPy engine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.engines.opencl.layers import attention
from holdfast.compute.ops import OPS
from tests.compute.opencl import checks
from tests.compute.opencl.test_matrix import numbers

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = f"{FORWARD}_backward"


def heads(many: int, count: int, length: int, keys: int, width: int, near: int = 0) -> list[Any]:
    """Query, key and value."""
    near = near or count
    shapes = [(many, count, length, width), *[(many, near, keys, width)] * 2]
    return [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def same(args: list[Any], *, causal: bool = False, tolerance: float = 1e-4, **more: Any) -> Any:
    """Forward and the gradient."""
    out, sums = checks.same(FORWARD, *args, 0.0, causal, rtol=tolerance, atol=tolerance, **more)
    grad = numbers(*out.shape, kind=out.dtype, seed=7)
    checks.same(
        BACKWARD, grad, *args, out, sums, 0.0, causal, rtol=tolerance, atol=tolerance, **more
    )
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 20, 20, 16), (1, 2, 70, 90, 64), (1, 2, 90, 70, 20), (2, 1, 5, 1, 40)]
)
def test_attention_and_its_gradient_are_as_in_numpy(shape: Any, causal: bool):
    same(heads(*shape), causal=causal)


def test_a_mask_is_added_to_the_scores():
    args = heads(2, 3, 20, 24, 16)
    for shape in ((20, 24), (2, 1, 20, 24), (2, 3, 20, 24), (1, 3, 1, 24)):
        same(args, attn_mask=numbers(*shape, seed=5))


def test_a_boolean_mask_hides_keys():
    args = heads(1, 2, 20, 24, 16)
    same(args, attn_mask=numbers(20, 24, kind="bool"))


def test_a_query_that_sees_nothing_gets_zeros():
    mask = numpy.zeros((20, 24), "float32")
    mask[3] = mask[17] = -numpy.inf
    out = same(heads(1, 2, 20, 24, 16), attn_mask=mask)
    assert not out[:, :, 3].any()


def test_heads_of_queries_may_share_keys():
    args = heads(2, 6, 20, 24, 16, near=2)
    same(args)
    same(args, causal=True)
    same(args, attn_mask=numbers(2, 6, 20, 24, seed=5))


def test_values_may_have_another_width_than_keys():
    q, k, v = heads(1, 2, 20, 24, 16)
    same([q, k, v[..., :10]])
    same([q, k, numbers(1, 2, 24, 40)])


def test_wide_heads_are_done_in_steps():
    same(heads(1, 1, 9, 10, 300))


def test_the_scale_may_be_given():
    same(heads(1, 2, 20, 24, 16), scale=0.3)


def test_heads_may_lie_inside_positions():
    args = [numbers(2, 30, 3, 16, seed=s).transpose(0, 2, 1, 3) for s in range(3)]
    same(args)
    turned = [numbers(2, 3, 16, 30, seed=s).transpose(0, 1, 3, 2) for s in range(3)]
    same(turned)


@pytest.mark.parametrize("kind", ["float16", ml_dtypes.bfloat16, "float64"], ids=str)
def test_every_float_attends(kind: Any):
    args = [a.astype(kind) for a in heads(1, 2, 20, 24, 16)]
    checks.same(FORWARD, *args, rtol=2e-2, atol=2e-2)
    checks.same(FORWARD, *args, attn_mask=numbers(20, 24, kind=kind), rtol=2e-2, atol=2e-2)
    same(args, tolerance=2e-2)


def test_a_small_workspace_is_used_part_by_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "WORKSPACE_BYTES", {"cpu": 4000, "gpu": 4000})
    args = heads(2, 4, 20, 24, 16, near=2)
    same(args, causal=True)
    same(args, attn_mask=numbers(20, 24))


def test_there_may_be_nothing_to_attend_to():
    q, k, v = heads(1, 2, 5, 6, 8)
    checks.same(FORWARD, q, k[:, :, :0], v[:, :, :0])
    checks.same(FORWARD, q[:, :, :0], k, v)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((*heads(1, 2, 5, 6, 8), 0.5), {}),
        ((numbers(2, 3), numbers(2, 3), numbers(2, 3)), {}),
        ((numbers(1, 2, 5, 8), numbers(1, 2, 5, 9), numbers(1, 2, 5, 9)), {}),
        ((numbers(1, 3, 5, 8), numbers(1, 2, 5, 8), numbers(1, 2, 5, 8)), {}),
    ],
)
def test_what_does_not_fit_is_refused_as_by_numpy(args: Any, kwargs: Any):
    with pytest.raises(BadInput) as expected:
        run(OPS[FORWARD], ENGINES["numpy"], list(args), kwargs)
    with pytest.raises(BadInput) as found:
        checks.on("cpu", FORWARD, *args, **kwargs)
    assert str(found.value) == str(expected.value)
