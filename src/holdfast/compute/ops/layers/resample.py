"""Resampling to another size: nearest, linear, cubic, with and without antialiasing.

Sizes come from `output_size`; scales, if given, only set the distance between pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def modes() -> Iterator[tuple[str, tuple[str, str], int, bool]]:
    """(op, stencils forward and backward, spatial dimensions, whether corners can be aligned)."""
    for name, (count, aligned) in KINDS.items():
        mode = name.removeprefix("_").removeprefix("upsample_").replace(f"{count}d", "")
        # Only here torch ignores a scale like 2.1 if the size doubles.
        there = "nearest_kept" if (mode, count) == ("nearest", 2) else mode
        yield name, (there, "nearest_kept" if mode == "nearest" else mode), count, aligned


def register_modes(register: Any, resample: Any, resample_backward: Any, lead: int = 0) -> None:
    """Register kernels of all modes; `lead`: how many arguments precede those of the op."""

    def read(rest: Any, named: Any, count: int, aligned: bool) -> tuple[bool, list[Any]]:
        order = SCALES[count]
        values = dict(zip(("align_corners", *order)[not aligned :], rest, strict=False)) | named
        return bool(values.get("align_corners", False)), [values.get(name) for name in order]

    def add(name: str, stencils: tuple[str, str], count: int, aligned: bool) -> None:
        def forward(first: Any, of: Any, size: Any, *rest: Any, **named: Any) -> Any:
            shape = sizes_of(of.shape, count, size)
            how = read(rest, named, count, aligned)
            return resample(*first, stencils[0], of, shape, *how)

        def backward(first: Any, grad: Any, size: Any, sizes: Any, *rest: Any, **named: Any) -> Any:
            shape = sizes_of(sizes, count, size)
            if grad.shape != shape:
                raise ValueError(
                    f"the gradient is {list(grad.shape)}, the result was {list(shape)}"
                )
            how = read(rest, named, count, aligned)
            return resample_backward(*first, stencils[1], grad, tuple(sizes[2:]), *how)

        def split(function: Any) -> Any:
            return lambda *args, **named: function(args[:lead], *args[lead:], **named)

        register(name, split(forward))
        register(f"{name}_backward", split(backward))
        if not lead:
            register(f"{name}.vec", _by_factors(split(forward), aligned))

    for mode in modes():
        add(*mode)


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
    )(_by_factors(lambda *args: F.packet(name)(*args), aligned))


def _by_factors(call: Callable[..., Any], aligned: bool) -> Callable[..., Any]:
    def resample(input: Any, output_size: Any, *rest: Any, **named: Any) -> Any:
        corners = [rest[0] if rest else named["align_corners"]] if aligned else []
        factors = named["scale_factors"] if "scale_factors" in named else rest[-1]
        sizes = factored(input.shape, output_size, factors)
        scales = factors or [None] * len(sizes)
        return call(input, sizes, *corners, *scales)

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
