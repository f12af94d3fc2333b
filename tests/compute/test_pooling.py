"""Pooling, padding and patches where torch's own tests do not look: dtypes, errors, gradients."""

from __future__ import annotations

import weakref
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor, functional
from holdfast.compute.autograd import tape
from tests.contract.torch_bridge import to_array, to_torch

SLACK = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}


def ours(value: Any, wanted: bool = False) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    array = to_array(value)
    return CustomTensor(array, dtype=array.dtype, requires_grad=wanted)


def same(name: str, *args: Any) -> Any:
    """The op of that name on both sides, compared; torch's result."""
    base, _, overload = name.partition(".")
    expected = getattr(getattr(torch.ops.aten, base), overload or "default")(*args)
    found = functional.packet(base)(*map(ours, args))
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        slack = SLACK.get(other.dtype, 0)
        torch.testing.assert_close(
            to_torch(one.data), other, rtol=slack, atol=slack, equal_nan=True, check_stride=False
        )
    return expected


def test_of_equal_numbers_the_first_counts_and_of_nans_the_last() -> None:
    equal = torch.tensor([[[3.0, 5.0, 1.0], [5.0, 5.0, 2.0], [0.0, 1.0, 5.0]]])
    _, where = same("max_pool2d_with_indices", equal, [3, 3], [1, 1], [1, 1])
    assert where.flatten().tolist() == [1, 1, 1, 1, 1, 1, 3, 3, 4]
    equal[0, 0, 0] = equal[0, 2, 1] = torch.nan
    _, where = same("max_pool2d_with_indices", equal, [3, 3])
    assert where.item() == 7
    _, where = same(
        "max_pool2d_with_indices", torch.full((1, 2, 2), -torch.inf), [2, 2], [2, 2], [1, 1]
    )
    assert where.flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_pooling_takes_every_dtype_and_no_batch(kind: torch.dtype, batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    image = (torch.randn(*batch, 3, 7, 6) * 9).to(kind)
    window = [3, 2], [2, 1], [1, 1]
    same("max_pool2d_with_indices", image, *window, [1, 2], True)
    same("avg_pool2d", image, *window, True, False)
    same("avg_pool2d", image, *window, False, True, 5)
    if kind is not torch.int64:
        same("_adaptive_avg_pool2d", image, [3, 8])
        same("adaptive_max_pool2d", image, [3, 8])


def test_large_windows_take_another_way_to_the_same_result() -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 2, 13, 14).round()
    window = [7, 5], [2, 3], [3, 2], [1, 1], True
    result, where = same("max_pool2d_with_indices", image, *window)
    same("max_pool2d_with_indices_backward", torch.ones_like(result), image, *window, where)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.avg_pool2d(x, [3, 2], [2, 1], [1, 1], True, False),
        lambda f, x: f.max_pool2d_with_indices(x, [3, 2], [2, 1], [1, 1], [1, 1], True)[0],
        lambda f, x: f.adaptive_max_pool2d(x, [2, 3])[0],
        lambda f, x: f._adaptive_avg_pool2d(x, [4, 7]),
        lambda f, x: f.reflection_pad2d(x, [2, 1, -1, 3]),
        lambda f, x: f.im2col(x, [2, 2], [1, 1], [1, 0], [2, 1]),
        lambda f, x: f.pixel_unshuffle(x, 1),
    ],
)
def test_gradients_of_gradients_are_torchs(call: Any) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 5, 6, dtype=torch.float64)

    def twice(f: Any, x: Any, grad: Any) -> Any:
        out = call(f, x)
        (first,) = grad((out * out).sum(), x, create_graph=True)
        (second,) = grad((first * first).sum(), x)
        return second

    expected = twice(torch.ops.aten, image.clone().requires_grad_(), torch.autograd.grad)
    found = twice(functional, ours(image, True), tape.grad)
    numpy.testing.assert_allclose(found.data, expected.numpy(), rtol=1e-12, atol=1e-12)


def test_one_dimension_is_a_row_of_two() -> None:
    torch.manual_seed(0)
    row = torch.randn(2, 3, 11)
    same("max_pool1d", row, [3], [2], [1], [2], True)
    same("max_pool1d_with_indices", row[0], [3])
    same("avg_pool1d", row, [3], [2], [1], True, False)
    same("adaptive_avg_pool1d", row, [4])
    same("adaptive_max_pool1d", row, [4])
    same("max_pool3d", torch.randn(2, 3, 4, 5, 6), [2, 2, 2])


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("pad", [[2, 1], [1, -1, 0, 2], [-1, 2, 3, 1]])
def test_padding_by_mode(mode: str, pad: list[int]) -> None:
    shape = (2, 3, 4, 5) if len(pad) == 4 else (2, 3, 5)
    same("pad", torch.randn(shape), pad, mode)


def test_padding_goes_back_by_its_own_ops() -> None:
    image = ours(torch.ones(1, 1, 3, 3), True)
    functional.pad(image, [1, 1, 1, 1], "replicate").sum().backward()
    assert image.grad is not None
    assert image.grad.data[0, 0].tolist() == [[4, 2, 4], [2, 1, 2], [4, 2, 4]]


def refusal(function: Any, *args: Any) -> str:
    with pytest.raises(BadInput) as caught:
        function(*args)
    return str(caught.value)


def test_errors_name_the_op_the_shapes_and_the_reason() -> None:
    image = CustomTensor(numpy.zeros((1, 3, 4, 4)))
    assert refusal(functional.avg_pool2d, image, [5, 5]) == (
        "cannot compute avg_pool2d(float32[1, 3, 4, 4], [5, 5]): the output would be [0, 0]: the "
        "input [4, 4] is smaller than the window [5, 5]\n"
        "  expected: avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], "
        "int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, "
        "int? divisor_override=None) -> Tensor"
    )
    assert "padding is [2, 2], it can be at most half of the window [2, 2]" in refusal(
        functional.max_pool2d_with_indices, image, [2, 2], [2, 2], [2, 2]
    )
    assert "divisor_override is 0" in refusal(
        functional.avg_pool2d, image, [2, 2], [2, 2], [0, 0], False, True, 0
    )
    assert "reflecting (4, 0) needs more than the 4 elements there are" in refusal(
        functional.reflection_pad2d, image, [4, 0, 0, 0]
    )
    assert refusal(functional.pad, image, [1, 1], "mirror") == (
        "cannot pad 1 dimensions by 'mirror'\n"
        "  expected: constant, circular, or, for 1 to 3 dimensions, reflect, replicate"
    )
    assert "3 channels cannot be split by 2² = 4" in refusal(functional.pixel_shuffle, image, 2)


def test_an_index_outside_of_the_plane_is_refused() -> None:
    image, where = torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 16)
    assert "an index lies outside of a plane of 16 elements" in refusal(
        functional.max_unpool2d, ours(image), ours(where), [4, 4]
    )
    assert "an index lies outside" in refusal(
        functional.max_unpool2d, ours(image), ours(where - 17), [4, 4]
    )


def test_results_are_fresh_even_where_nothing_changes() -> None:
    image = CustomTensor(numpy.ones((1, 4, 2, 2)))
    for made in (
        functional.pixel_shuffle(image, 1),
        functional.channel_shuffle(image, 1),
        functional.constant_pad_nd(image, [0, 0]),
        functional.pad(image, [0, 0], "circular"),
        functional.pad(image, [-1, 0], "circular"),
        functional._adaptive_avg_pool2d(image, [2, 2]),
        functional.upsample_nearest2d(image, [2, 2]),
        functional.upsample_bilinear2d(image, [2, 2], False),
    ):
        assert not numpy.shares_memory(made.data, image.data)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("max_pool2d", ([2, 2],)),
        ("avg_pool2d", ([2, 2],)),
        ("_adaptive_avg_pool2d", ([1, 1],)),
        ("adaptive_max_pool2d", ([1, 1],)),
        ("reflection_pad2d", ([1, 1, 1, 1],)),
    ],
)
def test_what_was_pooled_is_not_kept_for_the_gradient(name: str, args: Any) -> None:
    start = CustomTensor(numpy.arange(16.0).reshape(1, 1, 4, 4), requires_grad=True)
    image = start * 2
    kept = weakref.ref(image)
    made = functional.packet(name)(image, *args)
    made = made[0] if isinstance(made, tuple) else made
    del image
    assert kept() is None
    made.sum().backward()
    assert float(start.grad.sum()) == 2 * made.numel()
