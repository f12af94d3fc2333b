"""Patches to weights, and merging them."""

from __future__ import annotations

import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.residency.model_management.models.merging import Patch, check_patch, merge


def test_a_change_is_added_with_its_strength():
    weight, change = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert merge(weight, [Patch(0.5, change)]).tolist() == [6.0, 12.0]
    assert weight.tolist() == [1.0, 2.0]


def test_a_pair_is_multiplied():
    up, down = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]])
    assert merge(torch.zeros(2, 2), [Patch(2.0, (up, down))]).tolist() == [[6, 8], [12, 16]]


def test_a_pair_of_convolutions_fits_a_convolution():
    weight = torch.zeros(4, 3, 3, 3)
    up, down = torch.ones(4, 2, 1, 1), torch.ones(2, 3, 3, 3)
    result = merge(weight, [check_patch("conv", Patch(1.0, (up, down)), weight)])
    assert result.shape == weight.shape
    assert result.unique().tolist() == [2.0]


def test_patches_are_applied_in_order_and_may_scale_the_weight():
    patches = [Patch(1.0, torch.ones(1)), Patch(1.0, torch.ones(1), strength_model=0.5)]
    assert merge(torch.tensor([3.0]), patches).tolist() == [3.0]
    assert merge(torch.tensor([3.0]), patches[::-1]).tolist() == [3.5]


def test_weights_are_rounded_once_at_the_end():
    weight = torch.tensor([1.0], dtype=torch.bfloat16)
    small = [Patch(1.0, torch.tensor([0.003]))] * 4  # each alone is lost in bf16
    result = merge(weight, small)
    assert result.dtype == torch.bfloat16
    assert result.item() == torch.tensor(1.012).bfloat16().item() > 1.0


def test_double_precision_stays_double():
    weight = torch.tensor([1.0], dtype=torch.float64)
    result = merge(weight, [Patch(1.0, torch.tensor([1e-12], dtype=torch.float64))])
    assert result.item() == 1.0 + 1e-12


def test_a_merged_weight_is_never_the_weight_itself():
    weight = torch.ones(2)
    assert merge(weight, [Patch(0.0, torch.ones(2))]).data_ptr() != weight.data_ptr()


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (torch.zeros(3), "(3,)"),
        ((torch.zeros(2, 1), torch.zeros(2, 2)), "(2, 1) × (2, 2)"),
        ((torch.zeros(2, 1), torch.zeros(1, 3)), "(2, 1) × (1, 3)"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change, shape):
    with pytest.raises(BadInput) as caught:
        check_patch("a.weight", Patch(1.0, change), torch.zeros(2, 2))
    assert str(caught.value) == (
        f"cannot patch 'a.weight': a change of shape {shape} on a weight of shape (2, 2)\n"
        "  expected: a tensor of the weight's shape, or (up, down) whose product has that shape"
    )


def test_integers_cannot_be_patched():
    with pytest.raises(BadInput) as caught:
        check_patch("steps", Patch(1.0, torch.zeros(1)), torch.zeros(1, dtype=torch.int64))
    assert str(caught.value) == (
        "cannot patch 'steps': its numbers are torch.int64\n"
        "  expected: a weight of floating-point numbers"
    )
