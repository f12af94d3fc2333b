"""Sampling an image or volume at given points, and grids of affine maps.

Points are (x, y) or (x, y, z) in -1 … 1 over the input; x is the last dimension.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, gradients, rule
from holdfast.compute.ops.table import Op, composite, op

LINEAR, NEAREST, CUBIC = range(3)  # interpolation
ZEROS, BORDER, REFLECTION = range(3)  # padding


def check_grid(count: int, input: Any, grid: Any, mode: int, padding: int) -> tuple[int, ...]:
    """The shape of the result. Raises ValueError for arguments that do not fit."""
    if mode not in (LINEAR, NEAREST, *((CUBIC,) if count == 2 else ())):
        raise ValueError(f"interpolation_mode {mode} is unknown for {count} dimensions")
    if padding not in (ZEROS, BORDER, REFLECTION):
        raise ValueError(f"padding_mode is {padding}, it can be 0, 1 or 2")
    if len(input.shape) != count + 2 or len(grid.shape) != count + 2:
        raise ValueError(
            f"input and grid have {len(input.shape)} and {len(grid.shape)} dimensions, they take "
            f"{count + 2}"
        )
    if grid.shape[0] != input.shape[0] or grid.shape[-1] != count:
        raise ValueError(
            f"the grid is {list(grid.shape)}, it takes a batch of {input.shape[0]} and points of "
            f"{count} coordinates"
        )
    if min(input.shape[1:]) < 1:
        raise ValueError(f"the input {list(input.shape)} has nothing to sample")
    return (*input.shape[:2], *grid.shape[1:-1])


def _infer_grid_sample(op: Op, bound: dict[str, Any]) -> Meta:
    count = len(bound["input"].shape) - 2
    return Meta(check_grid(count, *list(bound.values())[:4]), bound["input"].dtype)


_HOW = "int interpolation_mode, int padding_mode, bool align_corners"
for _n in (2, 3):
    _name = f"grid_sampler_{_n}d"
    op(f"{_name}(Tensor input, Tensor grid, {_HOW}) -> Tensor", rule(_infer_grid_sample),
       {"input, grid": f"{_name}_backward(grad, input, grid, interpolation_mode, padding_mode,"
                       " align_corners, mask)"})  # fmt: skip
    op(f"{_name}_backward(Tensor grad_output, Tensor input, Tensor grid, {_HOW},"
       " bool[2] output_mask) -> (Tensor, Tensor)", gradients("input", "grid"))  # fmt: skip


@composite(f"grid_sampler(Tensor input, Tensor grid, {_HOW}) -> Tensor")
def _grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    name = "grid_sampler_3d" if input.ndim == 5 else "grid_sampler_2d"
    sample = F.packet(name)
    return sample(input, grid, interpolation_mode, padding_mode, align_corners)


# ---- grids of affine maps


def affine_shape(size: Any) -> tuple[int, ...]:
    """The shape of the grid for an output of `size`. Raises ValueError."""
    if len(size) not in (4, 5):
        raise ValueError(f"size has {len(size)} elements, it takes 4 or 5: batch, channels, space")
    return (size[0], *size[2:], len(size) - 2)


op("affine_grid_generator(Tensor theta, int[] size, bool align_corners) -> Tensor",
   rule(lambda _, bound: Meta(affine_shape(bound["size"]), bound["theta"].dtype)),
   {"theta": "affine_grid_generator_backward(grad, size, align_corners)"})  # fmt: skip
op("affine_grid_generator_backward(Tensor grad, int[] size, bool align_corners) -> Tensor",
   rule(lambda _, bound: Meta((bound["size"][0], len(bound["size"]) - 2, len(bound["size"]) - 1),
                              bound["grad"].dtype)),
   {"grad": "affine_grid_generator(grad, size, align_corners)"})  # fmt: skip
