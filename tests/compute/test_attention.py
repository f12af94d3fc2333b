"""Attention: the C loop and NumPy alone against torch."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor, functional
from holdfast.compute.autograd import tape
from holdfast.compute.engines.numpy.c_kernels import kernels
from holdfast.compute.engines.numpy.layers import attention as kernel


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "kernels", lambda: None)
        monkeypatch.setattr(kernel, "_BLOCK", 1 << 10)  # several blocks
    elif kernels() is None:
        pytest.skip("there is no C compiler")
    return request.param


def numbers(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


def three(
    queries: tuple[int, ...], keys: tuple[int, ...], width: int | None = None
) -> list[numpy.ndarray[Any, Any]]:
    wide = (*keys[:-1], width or keys[-1])
    return [numbers(*queries), numbers(*keys, seed=1), numbers(*wide, seed=2)]


def compare(arrays: list[Any], mask: Any = None, kind: str = "float32", **more: Any) -> None:
    """Results and gradients of both."""
    ours = [CustomTensor(a, dtype=kind, requires_grad=True) for a in arrays]
    theirs = [torch.from_numpy(a).to(getattr(torch, kind)).requires_grad_() for a in arrays]
    our_mask = None if mask is None else CustomTensor(mask, dtype=mask.dtype)
    their_mask = None if mask is None else torch.from_numpy(mask)
    attend = torch.nn.functional.scaled_dot_product_attention
    got = functional.scaled_dot_product_attention(*ours, our_mask, **more)
    wanted = attend(*theirs, their_mask, **more)
    rough = 3e-2 if kind in ("float16", "bfloat16") else 2e-4
    numpy.testing.assert_allclose(
        got.data.astype("float32"), wanted.detach().float().numpy(), rtol=rough, atol=rough
    )
    seed = numbers(*wanted.shape, seed=5)
    got.backward(CustomTensor(seed, dtype=kind))
    wanted.backward(torch.from_numpy(seed).to(wanted.dtype))
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        numpy.testing.assert_allclose(
            one.grad.data.astype("float32"), other.grad.float().numpy(), rtol=rough, atol=rough
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ((2, 3, 100, 16), (2, 3, 100, 16)),
        ((1, 2, 49, 40), (1, 2, 77, 40)),
        ((1, 1, 130, 5), (1, 1, 13, 5)),
        ((2, 1, 1, 8), (2, 1, 300, 8)),
    ],
)
def test_results_and_gradients_are_torch_s(queries: Any, keys: Any, causal: bool) -> None:
    compare(three(queries, keys), is_causal=causal)


@pytest.mark.parametrize(
    "shape", [(60, 50), (1, 50), (2, 1, 60, 50), (2, 3, 60, 50), (2, 1, 1, 50)]
)
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    mask = numbers(*shape, seed=9)
    mask = mask > -0.5 if kind == "bool" else mask
    compare(three((2, 3, 60, 8), (2, 3, 50, 8)), mask)


def test_a_mask_can_be_learned() -> None:
    arrays, mask = three((2, 4, 6, 5), (2, 2, 7, 5)), numbers(4, 6, 1, seed=3)[None]
    ours = [CustomTensor(a, requires_grad=True) for a in (*arrays, mask)]
    theirs = [torch.from_numpy(a).requires_grad_() for a in (*arrays, mask)]
    functional.scaled_dot_product_attention(*ours, enable_gqa=True).square().sum().backward()
    attend = torch.nn.functional.scaled_dot_product_attention
    attend(*theirs, enable_gqa=True).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        numpy.testing.assert_allclose(one.grad.data, other.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    mask = numpy.ones((6, 7), bool)
    mask[2] = False
    out = functional.scaled_dot_product_attention(
        *(CustomTensor(a) for a in three((1, 2, 6, 4), (1, 2, 7, 4))),
        CustomTensor(mask, dtype="bool"),
    )
    assert not out.data[:, :, 2].any()
    assert numpy.isfinite(out.data).all()


def test_the_logarithm_of_the_sums() -> None:
    arrays = three((2, 2, 50, 8), (2, 2, 60, 8))
    _, sums = kernel.attention(*arrays, scale=0.3)
    _, expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *map(torch.from_numpy, arrays), scale=0.3
    )
    numpy.testing.assert_allclose(sums, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_heads_can_share_keys() -> None:
    compare(three((2, 6, 20, 8), (2, 2, 30, 8)), enable_gqa=True)


def test_values_can_have_another_width() -> None:
    compare(three((2, 2, 20, 8), (2, 2, 30, 8), width=11), scale=0.5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 2)])
def test_other_numbers_of_dimensions(lead: tuple[int, ...]) -> None:
    compare(three((*lead, 20, 8), (*lead, 30, 8)))


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_other_dtypes(kind: str) -> None:
    compare(three((1, 2, 20, 8), (1, 2, 30, 8)), kind=kind)


def test_arrays_that_do_not_lie_in_order() -> None:
    arrays = [numbers(2, 30, 3, 8, seed=i).swapaxes(1, 2) for i in range(3)]
    out, _ = kernel.attention(*arrays)
    expected, _ = kernel.attention(*(a.copy() for a in arrays))
    numpy.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    q, k, v = three((1, 1, 60, 8), (1, 1, 50, 8))
    q[0, 0, 5, 0] = math.nan
    out, _ = kernel.attention(q, k, v)
    assert numpy.isnan(out[0, 0, 5]).all()
    assert numpy.isnan(out).sum() == 8


def test_nothing_to_attend_to() -> None:
    out, _ = kernel.attention(*three((1, 2, 5, 8), (1, 2, 0, 8)))
    assert out.shape == (1, 2, 5, 8)
    assert not out.any()


def test_gradients_of_gradients_are_torch_s() -> None:
    arrays = three((1, 4, 6, 5), (1, 2, 7, 5))

    def penalty(attend: Any, grad: Any, leaves: list[Any]) -> Any:
        out = attend(*leaves, enable_gqa=True)
        found = grad((out * out).sum(), leaves, create_graph=True)
        return sum((f * f).sum() for f in found)

    ours = [CustomTensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.from_numpy(a).requires_grad_() for a in arrays]
    penalty(functional.scaled_dot_product_attention, tape.grad, ours).backward()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        attend = torch.nn.functional.scaled_dot_product_attention
        penalty(attend, torch.autograd.grad, theirs).backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        numpy.testing.assert_allclose(one.grad.data, other.grad.numpy(), rtol=1e-3, atol=1e-3)


def test_dropout_leaves_some_out_and_keeps_the_mean() -> None:
    ones = CustomTensor(numpy.ones((1, 1, 64, 64)))
    out = functional.scaled_dot_product_attention(ones, ones, ones, None, 0.5)
    assert 0.8 < float(out.data.mean()) < 1.2
    assert out.data.std() > 0


def test_a_mask_and_a_triangle_are_one_too_many() -> None:
    q, k, v = (CustomTensor(a) for a in three((1, 1, 4, 4), (1, 1, 4, 4)))
    with pytest.raises((BadInput, ValueError), match="attn_mask and is_causal"):
        functional.scaled_dot_product_attention(q, k, v, CustomTensor(numbers(4, 4)), 0.0, True)
