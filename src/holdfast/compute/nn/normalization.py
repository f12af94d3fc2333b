"""BatchNorm1d/2d/3d, InstanceNorm1d/2d/3d, LayerNorm, GroupNorm, RMSNorm.

As in torch, running statistics are updated in training and used in evaluation; the running
variance is unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from numbers import Integral
from typing import Any, ClassVar

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.autograd import tape
from holdfast.compute.nn import init
from holdfast.compute.nn.convert import fill
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d"]
__all__ += ["InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "RMSNorm"]


class _Affine(Layer):
    """A layer with a weight of ones and a bias of zeros, if requested."""

    def _add_affine(self, shape: Sequence[int], affine: bool, kind: Any) -> None:
        (bias,) = self.take("bias")
        self.add_weight("weight", shape if affine else None, kind)
        self.add_weight("bias", shape if affine and bias else None, kind)
        self._reset_affine()

    def _reset_affine(self) -> None:
        for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
            if parameter is not None:
                init.constant_(parameter, value)


@layer
class _Statistics(_Affine):
    """Normalizes channels, optionally with running statistics."""

    shown = "{0.num_features}, eps={0.eps}, momentum={0.momentum}, affine={0.affine}, "
    ranks: ClassVar[tuple[int, ...]]
    shapes: ClassVar[str]
    num_features: int
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    device: Any = None
    dtype: Any = None
    bias: Any = field(default=True, kw_only=True)  # then a Parameter or None

    def build(self, kind: dict[str, Any]) -> None:
        self._add_affine([self.num_features], self.affine, kind)
        made: list[Any] = [None, None, None]
        if self.track_running_stats:
            made = [init.empty(self.num_features, **kind) for _ in range(2)]
            made.append(init.empty(**{**kind, "dtype": "int64"}))
        names = ("running_mean", "running_var", "num_batches_tracked")
        for name, buffer in zip(names, made, strict=True):
            self.register_buffer(name, buffer)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Begin again."""
        self.reset_running_stats()
        self._reset_affine()

    def _check(self, input: CustomTensor, channel: int) -> None:
        self.check_tensor(input)
        fits = input.ndim in self.ranks
        if not fits or input.shape[channel] != self.num_features:
            found = f", {input.shape[channel]} channels" if fits else ""
            expected = self.shapes.replace("C", str(self.num_features))
            raise self.refuse(input, f"it has {input.ndim} dimensions{found}", expected)

    def extra_repr(self) -> str:
        rest = f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        return super().extra_repr() + rest


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


class BatchNorm1d(_BatchNorm, ranks=(2, 3), shapes="[batch, C] or [batch, C, length]"):
    """Each channel of [batch, channels] or [batch, channels, length] over the batch."""


class BatchNorm2d(_BatchNorm, ranks=(4,), shapes="[batch, C, height, width]"):
    """Each channel of [batch, channels, height, width] over the batch."""


class BatchNorm3d(_BatchNorm, ranks=(5,), shapes="[batch, C, depth, height, width]"):
    """Each channel of [batch, channels, depth, height, width] over the batch."""


@layer
class _InstanceNorm(_Statistics):
    affine: bool = False
    track_running_stats: bool = False

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


class InstanceNorm1d(_InstanceNorm, ranks=(2, 3), shapes="[batch, C, length] or [C, length]"):
    """Each channel of each instance of [batch, channels, length]."""


class InstanceNorm2d(
    _InstanceNorm, ranks=(3, 4), shapes="[batch, C, height, width] or [C, height, width]"
):
    """Each channel of each instance of [batch, channels, height, width]."""


class InstanceNorm3d(
    _InstanceNorm,
    ranks=(4, 5),
    shapes="[batch, C, depth, height, width] or [C, depth, height, width]",
):
    """Each channel of each instance of [batch, channels, depth, height, width]."""


class _OverLast(_Affine):
    shown = "{0.normalized_shape}, eps={0.eps}, elementwise_affine={0.elementwise_affine}"
    normalized_shape: Any

    def build(self, kind: dict[str, Any]) -> None:
        given = self.normalized_shape
        self.normalized_shape = (given,) if isinstance(given, int) else tuple(given)
        self._add_affine(self.normalized_shape, self.elementwise_affine, kind)

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


@layer
class LayerNorm(_OverLast):
    """Mean 0 and variance 1 over the last dimensions, then weight and bias."""

    normalized_shape: Any
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: Any = True  # then a Parameter or None
    device: Any = None
    dtype: Any = None

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        shape = list(self.normalized_shape)
        return F.native_layer_norm(input, shape, self.weight, self.bias, self.eps)[0]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={self.bias is not None}"


@layer
class RMSNorm(_OverLast):
    """Divided by the root of the mean square over the last dimensions, then weight."""

    normalized_shape: Any
    eps: float | None = None
    elementwise_affine: bool = True
    device: Any = None
    dtype: Any = None

    def forward(self, input: CustomTensor) -> CustomTensor:
        self._check(input)
        return F.rms_norm(input, list(self.normalized_shape), self.weight, self.eps)


@layer
class GroupNorm(_Affine):
    """Mean 0 and variance 1 over groups of channels, then weight and bias."""

    num_groups: int
    num_channels: int
    eps: float = 1e-5
    affine: bool = True
    device: Any = None
    dtype: Any = None
    bias: Any = field(default=True, kw_only=True)  # then a Parameter or None

    def build(self, kind: dict[str, Any]) -> None:
        groups, channels = self.num_groups, self.num_channels
        whole = isinstance(groups, Integral) and isinstance(channels, Integral)
        if not whole or groups < 1 or channels % groups:
            raise BadInput(
                f"GroupNorm cannot split {channels} channels into {groups} groups",
                expected="groups that divide the channels",
            )
        self._add_affine([channels], self.affine, kind)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if input.ndim < 2 or input.shape[1] != self.num_channels:
            raise self.refuse_channels(input, self.num_channels)
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
