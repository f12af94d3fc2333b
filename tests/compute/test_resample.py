"""Resampling and sampling where torch's own tests do not look: dtypes, scales, gradients."""

from __future__ import annotations

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import CustomTensor, functional
from tests.compute.test_pooling import ours, refusal, same

SIZED = {
    "upsample_nearest1d": (1, False),
    "upsample_nearest2d": (2, False),
    "_upsample_nearest_exact3d": (3, False),
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "upsample_bicubic2d": (2, True),
    "_upsample_bilinear2d_aa": (2, True),
    "_upsample_bicubic2d_aa": (2, True),
    "_upsample_lanczos2d_aa": (2, True),
}


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_sizes_and_factors_give_what_torch_gives(
    name: str, aligned: bool, kind: torch.dtype
) -> None:
    torch.manual_seed(0)
    count, has_corners = SIZED[name]
    corners = [aligned] if has_corners else []
    image = torch.randn(2, 3, *(7, 5, 6)[:count], dtype=kind)
    wanted = [4, 11, 9][:count]
    factors = [0.6, 2.3, 1.7][:count]
    out = same(name, image, wanted, *corners)
    same(f"{name}_backward", torch.ones_like(out), wanted, list(image.shape), *corners)
    expected = getattr(torch.ops.aten, name).vec(image, None, *corners, factors)
    found = functional.packet(name)(ours(image), None, *corners, factors)
    numpy.testing.assert_allclose(found.data, expected.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d"])
def test_narrow_dtypes_are_computed_wide_and_rounded_once(name: str, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    same(name, torch.randn(1, 2, 5, 6).to(kind), [8, 4], True)


def test_nearest_takes_integers() -> None:
    same("upsample_nearest2d", torch.arange(6, dtype=torch.uint8).reshape(1, 1, 2, 3), [5, 4])


def test_resampling_is_undone_by_its_adjoint() -> None:
    """<A x, y> = <x, A' y> for every kind."""
    torch.manual_seed(0)
    for name, (count, has_corners) in SIZED.items():
        corners = [True] if has_corners else []
        x = ours(torch.randn(1, 2, *(7, 5, 6)[:count], dtype=torch.float64))
        wanted = [4, 11, 9][:count]
        there = functional.packet(name)(x, wanted, *corners)
        y = ours(torch.randn(*there.shape, dtype=torch.float64))
        back = functional.packet(f"{name}_backward")(y, wanted, list(x.shape), *corners)
        left, right = float((there.data * y.data).sum()), float((x.data * back.data).sum())
        assert left == pytest.approx(right, rel=1e-10), name


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_points_far_outside_are_sampled_as_torch_does(
    mode: int, padding: int, aligned: bool
) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    grid = torch.randn(2, 6, 3, 2, dtype=torch.float64) * 3
    grid[0, 0, 0] = torch.tensor([-1.0, 1.0])
    out = same("grid_sampler_2d", image, grid, mode, padding, aligned)
    gradient = torch.randn_like(out)
    same("grid_sampler_2d_backward", gradient, image, grid, mode, padding, aligned, [True, True])


def test_only_the_wanted_gradients_of_a_sampler_are_computed() -> None:
    image, grid = torch.randn(1, 1, 3, 3), torch.zeros(1, 2, 2, 2)
    args = [ours(t) for t in (torch.ones(1, 1, 2, 2), image, grid)]
    found = functional.grid_sampler_2d_backward(*args, 0, 0, False, [False, True])
    assert found[0] is None
    assert found[1].shape == (1, 2, 2, 2)


@pytest.mark.parametrize("size", [[2, 3, 4, 5], [1, 1, 1, 3], [2, 1, 3, 2, 4]])
@pytest.mark.parametrize("aligned", [False, True])
def test_affine_grids(size: list[int], aligned: bool) -> None:
    torch.manual_seed(0)
    count = len(size) - 2
    theta = torch.randn(size[0], count, count + 1)
    grid = same("affine_grid_generator", theta, size, aligned)
    same("affine_grid_generator_backward", torch.randn_like(grid), size, aligned)


def test_a_grid_learns_through_a_sampler() -> None:
    theta = CustomTensor(numpy.array([[[1.0, 0, 0.1], [0, 1, 0]]]), requires_grad=True)
    image = CustomTensor(numpy.arange(16.0).reshape(1, 1, 4, 4))
    grid = functional.affine_grid_generator(theta, [1, 1, 4, 4], True)
    functional.grid_sampler(image, grid, 0, 1, True).sum().backward()
    assert theta.grad is not None
    # Along y a row weighs 4 more than the last; the grid's outermost points cannot move inwards.
    other = torch.tensor(theta.data, requires_grad=True)
    points = torch.nn.functional.affine_grid(other, [1, 1, 4, 4], align_corners=True)
    sampled = torch.nn.functional.grid_sample(
        torch.tensor(image.data), points, padding_mode="border", align_corners=True
    )
    sampled.sum().backward()
    assert other.grad is not None
    numpy.testing.assert_allclose(theta.grad.data, other.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_errors_give_the_reason() -> None:
    image = CustomTensor(numpy.zeros((1, 3, 4, 4)))
    assert refusal(functional.upsample_bilinear2d, image, [0, 4], False) == (
        "cannot compute upsample_bilinear2d(float32[1, 3, 4, 4], [0, 4], False): cannot resample "
        "[4, 4] to [0, 4]: sizes are 1 or more\n"
        "  expected: upsample_bilinear2d(Tensor self, int[2] output_size, bool align_corners, "
        "float? scales_h=None, float? scales_w=None) -> Tensor"
    )
    assert "points of 2 coordinates" in refusal(
        functional.grid_sampler_2d, image, CustomTensor(numpy.zeros((1, 2, 2, 3))), 0, 0, False
    )
    with pytest.raises(BadInput, match="one of the two"):
        functional.upsample_nearest2d(image, None, None)
