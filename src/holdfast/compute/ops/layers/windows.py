"""Sliding windows over spatial dimensions, for pooling and patches. Reads sizes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy


class Window(NamedTuple):
    """A sliding window along one dimension of `size`, with `outputs` positions."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    outputs: int


def per_dim(value: Any, count: int, name: str) -> tuple[int, ...]:
    """One integer for each of `count` dimensions, from a list or a single one."""
    listed = (value,) if not isinstance(value, Sequence) else tuple(value)
    if len(listed) == 1:
        listed *= count
    if len(listed) != count:
        raise ValueError(f"{name} has {len(listed)} elements; {count} dimensions take 1 or {count}")
    return tuple(int(v) for v in listed)


def spatial(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` sizes of an input with channels and perhaps a batch."""
    if len(shape) not in (count + 1, count + 2):
        raise ValueError(
            f"the input has {len(shape)} dimensions: {count + 1} are channels and space, "
            f"{count + 2} a batch of those"
        )
    return tuple(shape[-count:])


def windows(
    shape: Sequence[int], count: int, kernel_size: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> tuple[Window, ...]:  # fmt: skip
    """The windows of a pooling op over the last `count` dimensions."""
    sizes = spatial(shape, count)
    kernel = per_dim(kernel_size, count, "kernel_size")
    steps = kernel if missing(stride) else per_dim(stride, count, "stride")
    around = per_dim(padding, count, "padding")
    spread = per_dim(dilation, count, "dilation")
    check(kernel, steps, around, spread)
    _check_half(kernel, around, spread)
    found = [
        Window(*given, outputs_of(*given, ceil_mode))
        for given in zip(sizes, kernel, steps, around, spread, strict=True)
    ]
    if any(w.outputs < 1 for w in found):
        raise ValueError(
            f"the output would be {[w.outputs for w in found]}: the input {list(sizes)} is smaller "
            f"than the window {list(kernel)}"
        )
    return tuple(found)


def outputs_of(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool = False
) -> int:
    """The number of positions; rounded up, the last window still starts inside."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    outputs = -(-room // stride) + 1
    return outputs - 1 if (outputs - 1) * stride >= size + padding else outputs


def missing(stride: Any) -> bool:
    """Whether the stride was left out; it then equals the kernel size."""
    return stride is None or (isinstance(stride, Sequence) and not len(stride))


def check(kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    """Raise ValueError for an invalid window."""
    for name, given in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(given) < 1:
            raise ValueError(f"{name} is {list(given)}, it must be greater than zero")
    if min(padding) < 0:
        raise ValueError(f"padding is {list(padding)}, it cannot be negative")


def _check_half(kernel: Any, padding: Any, dilation: Any) -> None:
    for one, around, spread in zip(kernel, padding, dilation, strict=True):
        if around > ((one - 1) * spread + 1) // 2:
            raise ValueError(
                f"padding is {list(padding)}, it can be at most half of the window {list(kernel)}"
            )


def adaptive(shape: Sequence[int], count: int, output_size: Any) -> tuple[int, ...]:
    """The output sizes of an adaptive pooling op."""
    sizes = spatial(shape, count)
    if 0 in sizes:
        raise ValueError(f"the input {list(sizes)} has nothing to pool")
    wanted = per_dim(output_size, count, "output_size")
    if min(wanted) < 0:
        raise ValueError(f"output_size is {list(wanted)}, it cannot be negative")
    return wanted


Bounds = tuple[Any, Any]  # (first, end) of the inputs of each window along a dimension


def adaptive_bounds(sizes: Sequence[int], outputs: Sequence[int]) -> list[Bounds]:
    """The input range [first, end) of each output of an adaptive pooling op, by dimension."""
    pairs = [(size, n, numpy.arange(n)) for size, n in zip(sizes, outputs, strict=True)]
    return [(i * size // n, -(-(i + 1) * size // n)) for size, n, i in pairs]


def inner_bounds(window: Window) -> Bounds:
    """The first input of each window that is inside, and the end; for a window with inputs."""
    start = numpy.arange(window.outputs) * window.stride - window.padding
    outside = numpy.maximum(0, -(start // window.dilation))
    first = numpy.minimum(start + outside * window.dilation, window.size - 1)
    end = numpy.minimum(start + (window.kernel - 1) * window.dilation + 1, window.size)
    return first, end


def divisors(along: Sequence[Window], padded: bool, override: int | None) -> list[Any]:
    """How many inputs each window has, with or without padding: a factor for each dimension."""
    if override is not None:
        if override == 0:
            raise ValueError("divisor_override is 0, it must not be zero")
        ones = [numpy.ones(window.outputs, int) for window in along]
        return [ones[0] * override, *ones[1:]]
    counts = []
    for window in along:
        first = numpy.arange(window.outputs) * window.stride - window.padding
        end = numpy.minimum(first + window.kernel, window.size + window.padding)
        if not padded:
            first, end = numpy.maximum(first, 0), numpy.minimum(end, window.size)
        counts.append(end - first)
    return counts


def places(window: Window) -> Iterator[tuple[int, slice, slice]]:
    """For every offset in the window: (offset, output slice, input slice)."""
    for offset in range(window.kernel):
        shift = offset * window.dilation - window.padding
        low = max(0, -(shift // window.stride))
        high = min(window.outputs, (window.size - 1 - shift) // window.stride + 1)
        if low < high:
            first = low * window.stride + shift
            last = (high - 1) * window.stride + shift
            yield offset, slice(low, high), slice(first, last + 1, window.stride)
