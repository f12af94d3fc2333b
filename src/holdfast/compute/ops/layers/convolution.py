"""Convolutions of one, two and three dimensions, and their transposes.

ATen's general `convolution` with its gradient; `conv2d` and the others call it. Second gradients
are convolutions again, since the gradient is linear in each of its inputs.
"""

from __future__ import annotations

from typing import Any

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


def output_sizes(
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
) -> tuple[int, ...]:
    """The spatial sizes of a convolution's result."""
    found = []
    for size, k, s, p, d, extra in zip(
        sizes, window, stride, padding, dilation, output_padding, strict=True
    ):
        reach = d * (k - 1) + 1
        if transposed:
            found.append((size - 1) * s - 2 * p + reach + extra)
        else:
            found.append((size + 2 * p - reach) // s + 1)
    return tuple(found)


def _shape(bound: dict[str, Any]) -> tuple[int, ...]:
    given, weight = bound["input"], bound["weight"]
    count = len(weight.shape) - 2
    stride, padding, dilation, extra = (
        per_dimension(bound[name], count)
        for name in ("stride", "padding", "dilation", "output_padding")
    )
    transposed = bound["transposed"]
    channels = weight.shape[1] * bound["groups"] if transposed else weight.shape[0]
    sizes = output_sizes(
        tuple(given.shape[2:]),
        tuple(weight.shape[2:]),
        stride,
        padding,
        dilation,
        transposed,
        extra,
    )
    return (given.shape[0], channels, *sizes)


def _infer_convolution(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta(_shape(bound), bound["input"].dtype)


def _infer_convolution_backward(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...] | None:
    if not all(bound["output_mask"]):
        return None
    kind = bound["input"].dtype
    channels = bound["grad_output"].shape[1]
    shapes = (tuple(bound["input"].shape), tuple(bound["weight"].shape), (channels,))
    return tuple(Meta(shape, kind) for shape in shapes)


_SETTINGS = "stride, padding, dilation, transposed, output_padding, groups"

op(
    "convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, bool transposed, int[] output_padding, int groups) -> Tensor",
    rule(_infer_convolution, _EXPECTS),
    {
        "input, weight, bias": "convolution_backward(grad, conj(input), conj(weight), None, "
        f"{_SETTINGS}, mask)"
    },
)
op(
    "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, "
    "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, "
    "int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    rule(_infer_convolution_backward, _EXPECTS),
    {
        "grad_output, input, weight": "convolution_double_backward(grads, given, grad_output, "
        f"input, weight, {_SETTINGS}, mask)"
    },
)


# ---- composites


def _convolve(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int,
    transposed: bool = False, output_padding: Any = 0,
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


def _convolve_padded(
    input: Any, weight: Any, bias: Any, stride: Any, padding: str, dilation: Any, groups: int
) -> Any:
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


def _conv(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    return _convolve(input, weight, bias, stride, padding, dilation, groups)


def _conv_padded(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: str = "valid",
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    return _convolve_padded(input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    return _convolve(input, weight, bias, stride, padding, dilation, groups, True, output_padding)


for _n, _overload in ((1, ""), (2, ".input"), (3, ".input")):
    _head = f"Tensor input, Tensor weight, Tensor? bias=None, int[{_n}] stride=1"
    composite(
        f"conv{_n}d({_head}, int[{_n}] padding=0, int[{_n}] dilation=1, int groups=1) -> Tensor"
    )(_conv)
    composite(
        f'conv{_n}d.padding({_head}, str padding="valid", int[{_n}] dilation=1, int groups=1) '
        "-> Tensor"
    )(_conv_padded)
    composite(
        f"conv_transpose{_n}d{_overload}({_head}, int[{_n}] padding=0, "
        f"int[{_n}] output_padding=0, int groups=1, int[{_n}] dilation=1) -> Tensor"
    )(_conv_transpose)
