"""BatchNorm1d/2d/3d, InstanceNorm1d/2d/3d, LayerNorm, GroupNorm, RMSNorm.

As in torch, running statistics are updated in training and used in evaluation; the running
variance is unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.autograd import tape
from holdfast.compute.nn import init
from holdfast.compute.nn.convert import fill
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.tensors.custom_tensor import CustomTensor


def _affine(module: Module, shape: Sequence[int], weight: bool, bias: bool, kind: Any) -> None:
    """A weight of ones and a bias of zeros, if requested."""
    ones = Parameter(init.ones_(init.empty(*shape, **kind))) if weight else None
    zeros = Parameter(init.zeros_(init.empty(*shape, **kind))) if bias else None
    module.register_parameter("weight", ones)
    module.register_parameter("bias", zeros)


class _Statistics(Module):
    """Normalizes channels, optionally with running statistics."""

    ranks: tuple[int, ...]
    shapes: str
    running_mean: Any  # tensors, or None where nothing is tracked
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        kind = {"device": device, "dtype": dtype}
        _affine(self, [num_features], affine, affine and bias, kind)
        made = [None, None, None]
        if track_running_stats:
            mean, var = (init.empty(num_features, **kind) for _ in range(2))
            count = init.empty(device=device, dtype="int64")
            made = [init.zeros_(mean), init.ones_(var), init.zeros_(count)]
        for name, buffer in zip(
            ("running_mean", "running_var", "num_batches_tracked"), made, strict=True
        ):
            self.register_buffer(name, buffer)

    def reset_running_stats(self) -> None:
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Begin again."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check(self, input: CustomTensor, channel: int) -> None:
        self.check_tensor(input)
        fits = input.ndim in self.ranks
        if not fits or input.shape[channel] != self.num_features:
            found = f", {input.shape[channel]} channels" if fits else ""
            expected = self.shapes.replace("C", str(self.num_features))
            raise self.refuse(input, f"it has {input.ndim} dimensions{found}", expected)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Statistics):
    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input, 1)
        batch = self.training or self.running_mean is None
        count = math.prod(input.shape) // max(self.num_features, 1)
        if batch and count <= 1:
            raise self.refuse(
                input,
                "one value for each channel has no variance",
                "at least two values for each channel while training",
                "eval()",
            )
        weight, bias = self.weight, self.bias
        if not batch:
            return F._native_batch_norm_legit_no_training(
                input, weight, bias, self.running_mean, self.running_var, 0.0, self.eps
            )[0]
        if not self.training or self.running_mean is None:
            return F._native_batch_norm_legit(input, weight, bias, True, 0.0, self.eps)[0]
        return F._native_batch_norm_legit(
            *(input, weight, bias, self.running_mean, self.running_var),
            *(True, self._share(), self.eps),
        )[0]

    def _share(self) -> float:
        """The weight of this batch in the running statistics."""
        seen = int(self.num_batches_tracked.data) + 1
        fill(self.num_batches_tracked, numpy.asarray(seen))
        return 1.0 / seen if self.momentum is None else self.momentum


class BatchNorm1d(_BatchNorm):
    """Each channel of [batch, channels] or [batch, channels, length] over the batch."""

    ranks, shapes = (2, 3), "[batch, C] or [batch, C, length]"


class BatchNorm2d(_BatchNorm):
    """Each channel of [batch, channels, height, width] over the batch."""

    ranks, shapes = (4,), "[batch, C, height, width]"


class BatchNorm3d(_BatchNorm):
    """Each channel of [batch, channels, depth, height, width] over the batch."""

    ranks, shapes = (5,), "[batch, C, depth, height, width]"


class _InstanceNorm(_Statistics):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            *(num_features, eps, momentum, affine, track_running_stats, device, dtype), bias=bias
        )

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        unbatched = input.ndim == self.ranks[0]
        self._check(input, 0 if unbatched else 1)
        batched = F.unsqueeze(input, 0) if unbatched else input
        if self.training or self.running_mean is None:
            out = self._by_instance(input, batched)
        else:
            out = F._native_batch_norm_legit_no_training(
                *(batched, self.weight, self.bias, self.running_mean, self.running_var),
                *(0.0, self.eps),
            )[0]
        return F.squeeze(out, 0) if unbatched else out

    def _by_instance(self, input: CustomTensor, batched: CustomTensor) -> CustomTensor:
        size = math.prod(batched.shape[2:])
        if size <= 1:
            raise self.refuse(
                input,
                "one value for each channel has no variance",
                "at least two values for each channel of an instance",
            )
        if self.running_mean is not None:
            self._track(batched)
        # An instance norm is a group norm with as many groups as channels.
        count, channels = batched.shape[:2]
        return F.native_group_norm(
            batched, self.weight, self.bias, count, channels, size, channels, self.eps
        )[0]

    def _track(self, batched: CustomTensor) -> None:
        dims = list(range(2, batched.ndim))
        share = 0.0 if self.momentum is None else self.momentum
        with tape.no_grad():
            means = F.mean(F.mean(batched, dims), [0])
            variances = F.mean(F.var(batched, dims), [0])
            for running, found in ((self.running_mean, means), (self.running_var, variances)):
                fill(running, F.add(F.mul(running, 1 - share), F.mul(found, share)))


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each instance of [batch, channels, length]."""

    ranks, shapes = (2, 3), "[batch, C, length] or [C, length]"


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each instance of [batch, channels, height, width]."""

    ranks, shapes = (3, 4), "[batch, C, height, width] or [C, height, width]"


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each instance of [batch, channels, depth, height, width]."""

    ranks, shapes = (4, 5), "[batch, C, depth, height, width] or [C, depth, height, width]"


class _OverLast(Module):
    """Normalizes over the last dimensions."""

    normalized_shape: tuple[int, ...]

    def _check(self, input: CustomTensor) -> None:
        self.check_tensor(input)
        last = tuple(input.shape[max(input.ndim - len(self.normalized_shape), 0) :])
        if last != self.normalized_shape:
            sizes = ", ".join(map(str, self.normalized_shape))
            raise self.refuse(
                input,
                f"its last sizes are {list(last)}, not {list(self.normalized_shape)}",
                f"a tensor of [..., {sizes}]",
            )


def _sizes(given: Any) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


class LayerNorm(_OverLast):
    """Mean 0 and variance 1 over the last dimensions, then weight and bias."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        kind = {"device": device, "dtype": dtype}
        wanted = elementwise_affine
        _affine(self, self.normalized_shape, wanted, wanted and bias, kind)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        shape = list(self.normalized_shape)
        return F.native_layer_norm(input, shape, self.weight, self.bias, self.eps)[0]

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(_OverLast):
    """Divided by the root of the mean square over the last dimensions, then weight."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        made = init.empty(*self.normalized_shape, device=device, dtype=dtype)
        self.register_parameter(
            "weight", Parameter(init.ones_(made)) if elementwise_affine else None
        )

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        return F.rms_norm(input, list(self.normalized_shape), self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """Mean 0 and variance 1 over groups of channels, then weight and bias."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        whole = isinstance(num_groups, Integral) and isinstance(num_channels, Integral)
        if not whole or num_groups < 1 or num_channels % num_groups:
            raise BadInput(
                f"GroupNorm cannot split {num_channels} channels into {num_groups} groups",
                expected="groups that divide the channels",
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.affine = affine
        kind = {"device": device, "dtype": dtype}
        _affine(self, [num_channels], affine, affine and bias, kind)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if input.ndim < 2 or input.shape[1] != self.num_channels:
            raise self.refuse(
                input,
                f"it has {input.shape[1] if input.ndim > 1 else 'no'} channels",
                f"a tensor of [batch, {self.num_channels}, ...]",
            )
        count, channels = input.shape[:2]
        size = math.prod(input.shape[2:])
        return F.native_group_norm(
            *(input, self.weight, self.bias, count, channels, size, self.num_groups, self.eps)
        )[0]

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )
