"""Attention on the device: when it is fused, and that it is what the CPU computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import holdfast.torch
from holdfast.base.errors import Unsupported
from holdfast.compute.torch_device.overrides import attention

assert holdfast.torch  # it makes the device known

FUSED = "ScaledDotProductFlashAttentionForCpuBackward0"
Tensor = torch.Tensor


def _three(*, near: int = 4, width: int = 24, kind: Any = torch.float32) -> list[Tensor]:
    """A query, keys and values, with heads that may share keys."""
    torch.manual_seed(0)
    shapes = (2, 4, 37, 16), (2, near, 53, 16), (2, near, 53, width)
    return [torch.randn(shape).to(kind) for shape in shapes]


def _attended(three: list[Tensor], place: str, **how: Any) -> list[Tensor]:
    """The result on a device, and the gradients of all three, on the CPU."""
    there = [t.detach().to(place).requires_grad_() for t in three]
    named = {k: v.to(place) if isinstance(v, Tensor) else v for k, v in how.items()}
    out = F.scaled_dot_product_attention(*there, **named)
    toward = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    out.backward(toward.to(place))
    return [t.detach().cpu() for t in (out, *(t.grad for t in there if t.grad is not None))]


CALLS: dict[str, dict[str, Any]] = {
    "everything is seen": {},
    "a triangle is seen": {"is_causal": True},
    "truth values say what is seen": {"attn_mask": torch.arange(37 * 53).view(37, 53) % 3 > 0},
    "a mask is added": {"attn_mask": torch.linspace(-2, 2, 2 * 53).view(2, 1, 1, 53)},
    "the scale is given": {"scale": 0.3},
}


@pytest.mark.parametrize("how", CALLS.values(), ids=CALLS)
def test_results_and_gradients_are_those_of_the_cpu(how: dict[str, Any]) -> None:
    three = _three()
    for ours, theirs in zip(
        _attended(three, "holdfast", **how), _attended(three, "cpu", **how), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-6)


def test_heads_of_queries_share_a_head_of_keys() -> None:
    three = _three(near=2)
    for ours, theirs in zip(
        _attended(three, "holdfast", enable_gqa=True),
        _attended(three, "cpu", enable_gqa=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=5e-6)


def test_bfloat16_is_rounded_once() -> None:
    three = _three(kind=torch.bfloat16)
    exact = _attended([t.double() for t in three], "cpu")[0]
    ours = _attended(three, "holdfast")[0]
    assert ours.dtype is torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-7, atol=1e-3)


def _way(three: list[Tensor], **how: Any) -> str:
    there = [t.to("holdfast").requires_grad_() for t in three]
    function: Any = F.scaled_dot_product_attention(*there, **how).grad_fn
    return function.name()


@pytest.mark.usefixtures("python_device")
def test_a_call_with_heads_is_fused_and_joins_them_without_a_copy() -> None:
    three = _three(width=16)
    assert _way(three) == FUSED
    out = F.scaled_dot_product_attention(*(t.to("holdfast") for t in three))
    assert out.transpose(1, 2).is_contiguous()


def test_what_the_fused_op_does_not_serve_is_taken_apart() -> None:
    three = _three()
    learned = torch.zeros(37, 53, device="holdfast", requires_grad=True)
    assert _way([t[0] for t in three]) != FUSED  # no batch
    assert _way(three, dropout_p=0.5) != FUSED
    assert _way(three, attn_mask=learned) != FUSED
    with sdpa_kernel(SDPBackend.MATH):
        assert _way(three) != FUSED


def test_a_learned_mask_has_the_gradient_of_the_cpu() -> None:
    three, masks = _three(), []
    for place in ("holdfast", "cpu"):
        mask = torch.zeros(37, 53, device=place, requires_grad=True)
        out = F.scaled_dot_product_attention(*(t.to(place) for t in three), attn_mask=mask)
        out.square().sum().backward()
        masks.append(mask.grad)
    torch.testing.assert_close(masks[0].cpu(), masks[1], rtol=1e-5, atol=5e-6)


def test_gradients_of_gradients_go_the_way_that_is_taken_apart() -> None:
    query, key, value = (t.to("holdfast").requires_grad_() for t in _three())
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(query, key, value)
        (first,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
        first.sum().backward()
    assert query.grad is not None
    assert query.grad.cpu().isfinite().all()


@pytest.mark.usefixtures("python_device")
def test_the_names_that_a_device_supplies_compute_the_same() -> None:
    there = [t.to("holdfast").requires_grad_() for t in _three()]
    assert torch._fused_sdp_choice(*there) == int(SDPBackend.OVERRIDEABLE)
    plain = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    grads = []
    for out in (plain(*there)[0], F.scaled_dot_product_attention(*there)):
        grads.append([out, *torch.autograd.grad(out.square().sum(), there)])
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


def test_the_supplied_name_refuses_a_learned_mask() -> None:
    three = [t.to("holdfast") for t in _three()]
    nothing = torch.empty(0, device="holdfast")
    with pytest.raises(Unsupported) as caught:
        attention.attention_backward(
            three[0], *three, None, [True] * 4, nothing, nothing, nothing, nothing, 37, 53, 0.0,
            False, nothing, nothing,
        )  # fmt: skip
    assert str(caught.value) == (
        "the fused attention has no gradient for its mask\n"
        "  expected: a mask without requires_grad\n"
        "  try: torch.nn.functional.scaled_dot_product_attention, which chooses another way"
    )
