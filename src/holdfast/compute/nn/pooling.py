"""Max, average and adaptive pooling."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.module import Module
from holdfast.compute.tensors.custom_tensor import CustomTensor


def _listed(value: Any, count: int) -> list[int]:
    """One integer for each dimension. Raises BadInput."""
    listed = list(value) if isinstance(value, Sequence) else [value] * count
    if len(listed) != count or not all(n is None or isinstance(n, Integral) for n in listed):
        raise BadInput(
            f"{value!r} is no window size",
            expected=f"an integer, or {count} of them",
        )
    return listed


class _Pool(Module):
    """Pools over the last `space` dimensions, after channels and an optional batch."""

    space: int

    def _check(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if input.ndim not in (self.space + 1, self.space + 2):
            sizes = ", ".join(("height", "width")[-self.space :])
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions",
                f"[batch, channels, {sizes}] or [channels, {sizes}]",
            )
        return input

    def _check_window(self, input: CustomTensor, window: list[int], padding: list[int]) -> None:
        sizes = input.shape[-self.space :]
        if any(s + 2 * p < w for s, p, w in zip(sizes, padding, window, strict=True)):
            raise self.refuse(
                input, f"its sizes are {list(sizes)}", f"at least the window, which is {window}"
            )


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: CustomTensor) -> Any:
        self._check(input)
        window, stride, padding, dilation = (
            _listed(v, self.space)
            for v in (self.kernel_size, self.stride, self.padding, self.dilation)
        )
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
        self._check_window(input, spans, padding)
        values, indices = self._pool(input, window, stride, padding, dilation)
        return (values, indices) if self.return_indices else values

    def _pool(self, input: CustomTensor, *sizes: list[int]) -> Any:
        if self.space == 2:
            return F.max_pool2d_with_indices(input, *sizes, self.ceil_mode)
        fill = (1, 1, 0, 1)  # 1-d input is an image of height 1
        flat = [[one, *given] for one, given in zip(fill, sizes, strict=True)]
        found = F.max_pool2d_with_indices(F.unsqueeze(input, -2), *flat, self.ceil_mode)
        return tuple(F.squeeze(one, -2) for one in found)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The maximum of each window of [batch, channels, width]."""

    space = 1


class MaxPool2d(_MaxPool):
    """The maximum of each window of [batch, channels, height, width]."""

    space = 2


class AvgPool1d(_Pool):
    """The mean of each window of [batch, channels, width]."""

    space = 1

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = tuple(_listed(kernel_size, 1))
        self.stride = tuple(_listed(kernel_size if stride is None else stride, 1))
        self.padding = tuple(_listed(padding, 1))
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        self._check_window(input, list(self.kernel_size), list(self.padding))
        sizes = [[1, *self.kernel_size], [1, *self.stride], [0, *self.padding]]
        flat = F.unsqueeze(input, -2)
        out = F.avg_pool2d(flat, *sizes, self.ceil_mode, self.count_include_pad)
        return F.squeeze(out, -2)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_Pool):
    """The mean of each window of [batch, channels, height, width]."""

    space = 2

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        sizes = [_listed(v, 2) for v in (self.kernel_size, self.stride, self.padding)]
        self._check_window(input, sizes[0], sizes[2])
        return F.avg_pool2d(
            input, *sizes, self.ceil_mode, self.count_include_pad, self.divisor_override
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _Adaptive(_Pool):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def _target(self, input: CustomTensor) -> list[int]:
        """The output size; None stands for the input's size."""
        own = input.shape[-self.space :]
        wanted = _listed(self.output_size, self.space)
        return [size if w is None else w for w, size in zip(wanted, own, strict=True)]

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The mean of `output_size` windows that cover the width."""

    space = 1

    def forward(self, input: CustomTensor) -> CustomTensor:
        target = [1, *self._target(self._check(input))]
        return F.squeeze(F._adaptive_avg_pool2d(F.unsqueeze(input, -2), target), -2)


class AdaptiveAvgPool2d(_Adaptive):
    """The mean of `output_size` windows that cover height and width."""

    space = 2

    def forward(self, input: CustomTensor) -> CustomTensor:
        target = self._target(self._check(input))
        if target == [1, 1]:
            return F.mean(input, [-1, -2], True)
        return F._adaptive_avg_pool2d(input, target)


class AdaptiveMaxPool2d(_Adaptive):
    """The maximum of `output_size` windows that cover height and width."""

    space = 2

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: CustomTensor) -> Any:
        values, indices = F.adaptive_max_pool2d(input, self._target(self._check(input)))
        return (values, indices) if self.return_indices else values
