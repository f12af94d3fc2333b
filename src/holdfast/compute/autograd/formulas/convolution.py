"""Gradients of convolution's gradient, and of scattering elements to positions of an image."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.elementwise.complex_numbers import conjugate


def convolution_double_backward(
    grads: Any, given: Any, grad_output: Any, input: Any, weight: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Gradients of `convolution_backward`, whose results are linear in each of its inputs."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    back = F.packet("convolution_backward")
    parts = []
    if given[0] and mask[0]:
        parts.append(F.convolution(grads[0], conjugate(weight), None, *settings))
    if given[1] and mask[0]:
        parts.append(F.convolution(conjugate(input), grads[1], None, *settings))
    if given[2] and mask[0]:
        bias = grads[2].reshape([-1] + [1] * (grad_output.ndim - 2))
        parts.append(bias.expand(grad_output.shape))
    to_input = to_weight = None
    if given[1] and mask[1]:
        only = [True, False, False]
        to_input = back(conjugate(grad_output), input, grads[1], None, *settings, only)[0]
    if given[0] and mask[2]:
        only = [False, True, False]
        to_weight = back(conjugate(grad_output), grads[0], weight, None, *settings, only)[1]
    return sum(parts[1:], parts[0]) if parts else None, to_input, to_weight


def take_flat(grad: Any, indices: Any, dims: int) -> Any:
    """The elements at flat indices of the last `dims` dimensions: the adjoint of adding there."""
    outer = tuple(grad.shape[:-dims])
    flat = F.reshape(grad, [*outer, math.prod(grad.shape[-dims:])])
    where = F.reshape(indices, [*outer, math.prod(indices.shape[-dims:])])
    return F.reshape(F.gather(flat, -1, where), list(indices.shape))
