"""Convolutions of one, two and three dimensions, and their transposes.

ATen's general `convolution` with its gradient; `conv2d` and the others call it. Second gradients
are convolutions again, since the gradient is linear in each of its inputs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, rule
from holdfast.compute.ops.table import Op, composite, op

_EXPECTS = (
    "an input [N, C, ...] and a weight [O, C / groups, ...], or [C, O / groups, ...] transposed"
)


def per_dimension(value: Any, count: int) -> tuple[int, ...]:
    """One integer for each dimension, from a list or a single one."""
    listed = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ValueError(f"{list(listed)} has {len(listed)} elements for {count} dimensions")
    return listed


class ConvWindow(NamedTuple):
    """Kernel size, stride, padding and dilation of a convolution, for each dimension."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def elements(self) -> int:
        """Elements of a channel that it covers."""
        return math.prod(self.sizes)

    @property
    def is_plain(self) -> bool:
        """Whether the kernel has size 1, with a stride of 1 and no padding."""
        return max(*self.sizes, *self.stride) == 1 and not any(self.padding)

    def reach(self, sizes: tuple[int, ...]) -> list[int]:
        """How many input elements windows for `sizes` results cover, by dimension."""
        return [
            (size - 1) * s + d * (k - 1) + 1 if size else 0
            for size, k, s, d in zip(sizes, self.sizes, self.stride, self.dilation, strict=True)
        ]

    def steps(self, offset: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
        """The input elements that one tap of the window reads for `sizes` results."""
        return tuple(
            slice(o * d, o * d + (size - 1) * s + 1 if size else 0, s)
            for o, size, s, d in zip(offset, sizes, self.stride, self.dilation, strict=True)
        )


def window_of(weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> ConvWindow:
    """The window of a weight. Raises ValueError."""
    count = len(weight.shape) - 2
    if count < 1:
        raise ValueError("a weight has two dimensions for channels and one or more for the window")
    steps, zeros, gaps = (per_dimension(value, count) for value in (stride, padding, dilation))
    return ConvWindow(tuple(weight.shape[2:]), steps, zeros, gaps, int(groups))


def output_sizes(
    sizes: tuple[int, ...], window: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], transposed: bool,
    output_padding: tuple[int, ...],
) -> tuple[int, ...]:  # fmt: skip
    """The spatial sizes of a convolution's result."""
    given = zip(sizes, window, stride, padding, dilation, output_padding, strict=True)
    if transposed:
        return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, k, s, p, d, e in given)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in given)


def plan_convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> tuple[ConvWindow, tuple[int, ...]]:  # fmt: skip
    """The window of a convolution and the shape of its result. Raises ValueError or TypeError."""
    window = window_of(weight, stride, padding, dilation, groups)
    extra = per_dimension(output_padding, len(window.sizes))
    ndim, (first, second) = len(input.shape), weight.shape[:2]
    if ndim != len(weight.shape):
        raise ValueError(f"the input has {ndim} dimensions, the weight {len(weight.shape)}")
    if input.dtype != weight.dtype or (bias is not None and bias.dtype != input.dtype):
        raise TypeError("input, weight and bias have different dtypes")
    if groups < 1 or min(window.stride) < 1 or min(window.dilation) < 1:
        raise ValueError("groups, stride and dilation are 1 or more")
    if min(window.padding) < 0 or min(extra) < 0:
        raise ValueError("padding is 0 or more")
    channels, results = (first, second * groups) if transposed else (second * groups, first)
    if input.shape[1] != channels or first % groups:
        raise ValueError(
            f"{input.shape[1]} channels do not fit a weight for {channels} in {groups} groups"
        )
    if transposed and any(
        e >= max(s, d) for e, s, d in zip(extra, window.stride, window.dilation, strict=True)
    ):
        raise ValueError("output_padding is smaller than the stride or the dilation")
    if bias is not None and bias.shape != (results,):
        raise ValueError(f"the bias has shape {bias.shape} for {results} channels")
    sizes = output_sizes(tuple(input.shape[2:]), *window[:4], transposed, extra)
    if any(size < 0 or (size == 0 and not transposed) for size in sizes):
        raise ValueError(f"the window is larger than the padded input: the result would be {sizes}")
    return window, (input.shape[0], results, *sizes)


def _infer_convolution_backward(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...] | None:
    if not all(bound["output_mask"]):
        return None
    kind = bound["input"].dtype
    channels = bound["grad_output"].shape[1]
    shapes = (tuple(bound["input"].shape), tuple(bound["weight"].shape), (channels,))
    return tuple(Meta(shape, kind) for shape in shapes)


_SETTINGS = "stride, padding, dilation, transposed, output_padding, groups"

op("convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
   "int[] dilation, bool transposed, int[] output_padding, int groups) -> Tensor",
   rule(lambda _, bound: Meta(plan_convolution(**bound)[1], bound["input"].dtype), _EXPECTS),
   {"input, weight, bias": "convolution_backward(grad, conj(input), conj(weight), None, "
                           f"{_SETTINGS}, mask)"})  # fmt: skip
op("convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, "
   "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, "
   "int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
   rule(_infer_convolution_backward, _EXPECTS),
   {"grad_output, input, weight": "convolution_double_backward(grads, given, grad_output, "
                                  f"input, weight, {_SETTINGS}, mask)"})  # fmt: skip


# ---- composites


def _convolve(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, *, transposed: bool = False, output_padding: Any = 0,
) -> Any:  # fmt: skip
    count = len(weight.shape) - 2
    single = len(input.shape) == count + 1
    batch = F.unsqueeze(input, 0) if single else input
    out = F.convolution(
        batch, weight, bias,
        *(per_dimension(value, count) for value in (stride, padding, dilation)),
        transposed, per_dimension(output_padding, count), groups,
    )  # fmt: skip
    return F.squeeze(out, 0) if single else out


def _conv_padded(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: str = "valid",
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """With `padding` "valid" (none) or "same" (keeps the size)."""
    count = len(weight.shape) - 2
    if padding == "valid":
        return _convolve(input, weight, bias, stride, 0, dilation, groups)
    if padding != "same":
        raise ValueError(f"the padding {padding!r} is neither 'valid' nor 'same'")
    if any(s != 1 for s in per_dimension(stride, count)):
        raise ValueError("'same' is there for a stride of 1 only")
    total = [
        d * (k - 1) for d, k in zip(per_dimension(dilation, count), weight.shape[2:], strict=True)
    ]
    if any(t % 2 for t in total):  # what is left over goes to the end
        ends = [part for t in reversed(total) for part in (0, t % 2)]
        input = F.constant_pad_nd(input, ends, 0.0)
    return _convolve(input, weight, bias, stride, [t // 2 for t in total], dilation, groups)


def _conv_transpose(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    return _convolve(
        input, weight, bias, stride, padding, dilation, groups, transposed=True,
        output_padding=output_padding,
    )  # fmt: skip


for _n, _overload in ((1, ""), (2, ".input"), (3, ".input")):
    _head = f"Tensor input, Tensor weight, Tensor? bias=None, int[{_n}] stride=1"
    composite(
        f"conv{_n}d({_head}, int[{_n}] padding=0, int[{_n}] dilation=1, int groups=1) -> Tensor"
    )(_convolve)
    composite(
        f'conv{_n}d.padding({_head}, str padding="valid", int[{_n}] dilation=1, int groups=1) '
        "-> Tensor"
    )(_conv_padded)
    composite(
        f"conv_transpose{_n}d{_overload}({_head}, int[{_n}] padding=0, "
        f"int[{_n}] output_padding=0, int groups=1, int[{_n}] dilation=1) -> Tensor"
    )(_conv_transpose)
