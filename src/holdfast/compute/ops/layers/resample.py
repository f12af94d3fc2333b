"""Resampling to another size: nearest, linear, cubic, with and without antialiasing.

Sizes come from `output_size`; scales, if given, only set the distance between pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.rules import Infer, Meta, rule, sized
from holdfast.compute.ops.table import Op, composite, op

# name -> (spatial dimensions, whether it takes align_corners)
KINDS = {
    **{f"upsample_nearest{n}d": (n, False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": (n, False) for n in (1, 2, 3)},
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "upsample_bicubic2d": (2, True),
    "_upsample_bilinear2d_aa": (2, True),
    "_upsample_bicubic2d_aa": (2, True),
    "_upsample_lanczos2d_aa": (2, True),
}
SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}


def sizes_of(shape: Sequence[int], count: int, output_size: Any) -> tuple[int, ...]:
    """The shape of a resampled input. Raises ValueError."""
    if len(shape) != count + 2:
        raise ValueError(
            f"the input has {len(shape)} dimensions, it takes {count + 2}: batch, channels, space"
        )
    wanted = windows.per_dim(output_size, count, "output_size")
    if min(wanted) < 1 or min(shape[2:]) < 1:
        raise ValueError(
            f"cannot resample {list(shape[2:])} to {list(wanted)}: sizes are 1 or more"
        )
    return (*shape[:2], *wanted)


def _infer_resample(count: int) -> Infer:
    def infer(op: Op, bound: dict[str, Any]) -> Meta:
        of = bound["self"]
        return Meta(sizes_of(of.shape, count, bound["output_size"]), of.dtype)

    return infer


def _declare(name: str, count: int, aligned: bool) -> None:
    corners = "bool align_corners, " if aligned else ""
    scales = ", ".join(f"float? {s}=None" for s in SCALES[count])
    rest = ("align_corners, " if aligned else "") + ", ".join(SCALES[count])
    op(f"{name}(Tensor self, int[{count}] output_size, {corners}{scales}) -> Tensor",
       rule(_infer_resample(count)),
       {"self": f"{name}_backward(grad, output_size, self.shape, {rest})"})  # fmt: skip
    op(f"{name}_backward(Tensor grad_output, int[{count}] output_size, int[{count + 2}] input_size,"
       f" {corners}{scales}) -> Tensor", sized("input_size", "grad_output"),
       {"grad_output": f"{name}(grad, output_size, {rest})"})  # fmt: skip
    composite(
        f"{name}.vec(Tensor input, int[]? output_size, {corners}float[]? scale_factors) -> Tensor"
    )(_by_factors(name, aligned))


def _by_factors(name: str, aligned: bool) -> Callable[..., Any]:
    def resample(input: Any, output_size: Any, *rest: Any, **named: Any) -> Any:
        corners = [rest[0] if rest else named["align_corners"]] if aligned else []
        factors = named["scale_factors"] if "scale_factors" in named else rest[-1]
        sizes = factored(input.shape, output_size, factors)
        scales = factors or [None] * len(sizes)
        return F.packet(name)(input, sizes, *corners, *scales)

    return resample


def factored(shape: Sequence[int], output_size: Any, factors: Any) -> list[int]:
    """Output sizes, from `output_size` or from factors. Raises BadInput unless one is given."""
    if (output_size is None) == (factors is None):
        raise BadInput(
            f"cannot resample to output_size={output_size} by scale_factors={factors}",
            expected="one of the two",
        )
    if output_size is not None:
        return [int(size) for size in output_size]
    return [int(size * factor) for size, factor in zip(shape[2:], factors, strict=True)]


for _name, (_count, _aligned) in KINDS.items():
    _declare(_name, _count, _aligned)
