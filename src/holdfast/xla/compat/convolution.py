"""Grouped convolutions, and convolutions with a bias. All others are torchax's.

XLA splits grouped convolutions with a kernel of size 1 wrongly over devices: with the input's
channels in more parts than there are groups, the result is wrong, or the compiler gives up (jax
0.10.2). As a matrix product for each group they are right.
torchax gives transposed convolutions of several groups the weights of the wrong group.
In 16 bits torchax rounds before and after adding the bias; torch's CPU rounds once, and through the
layers of a VAE that shows (Magvit: 1.6 times torch's error, then 0.9). GPUs are left unchanged:
whether they have a fast convolution from 16 to 32 bits has not been measured.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch


def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """aten.convolution, over JAX arrays."""
    is_pointwise = groups > 1 and not transposed and set(weight.shape[2:]) == {1}
    if is_pointwise and not any(padding) and input.ndim == weight.ndim:
        return _by_group(input, weight, bias, stride, groups)
    if bias is not None and not transposed and input.ndim == weight.ndim and _rounds(input):
        return _convolve_in_float32(input, weight, bias, stride, padding, dilation, groups)
    if transposed and groups > 1:
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        weight = jnp.moveaxis(by_group, 0, 1).reshape(weight.shape)
    others = (bias, stride, padding, dilation, transposed, output_padding, groups)
    return _torchax_convolution()(input, weight, *others)


def _torchax_convolution() -> Any:
    from torchax.ops import ops_registry

    return ops_registry.all_aten_ops[torch.ops.aten.convolution].func


def _by_group(input: Any, weight: Any, bias: Any, stride: Any, groups: int) -> Any:
    steps = tuple(stride) * (input.ndim - 2 if len(stride) == 1 else 1)
    places = tuple(slice(None, None, step) for step in steps)
    taken = input[(slice(None), slice(None), *places)]
    parts = taken.reshape(taken.shape[0], groups, -1, *taken.shape[2:])
    matrices = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1])
    out = jnp.einsum("ngi...,goi->ngo...", parts, matrices)
    out = out.reshape(taken.shape[0], weight.shape[0], *taken.shape[2:])
    return out if bias is None else out + bias.reshape(-1, *(1 for _ in steps))


def _rounds(input: Any) -> bool:
    return input.dtype.itemsize == 2 and jax.default_backend() not in ("gpu", "cuda", "rocm")


def _convolve_in_float32(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    axes = weight.ndim - 2
    steps, pads, holes = (
        tuple(one) * (axes if len(one) == 1 else 1) for one in (stride, padding, dilation)
    )
    out = jax.lax.conv_general_dilated(
        input,
        weight,
        steps,
        [(one, one) for one in pads],
        rhs_dilation=holes,
        feature_group_count=groups,
        preferred_element_type=jnp.float32,
    )
    wide = out + bias.astype(jnp.float32).reshape(-1, *(1 for _ in range(axes)))
    return wide.astype(input.dtype)
