"""Gradient clipping, and parameters_to_vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn.convert import fill
from holdfast.compute.tensors.custom_tensor import CustomTensor


def _gradients(parameters: Any) -> list[CustomTensor]:
    listed = isinstance(parameters, Iterable)
    given = [parameters] if isinstance(parameters, CustomTensor) or not listed else list(parameters)
    for one in given:
        if not isinstance(one, CustomTensor):
            raise BadInput(
                f"a {type(one).__name__} has no gradient to be clipped",
                expected="parameters",
                hint="module.parameters()",
            )
    return [p.grad for p in given if p.grad is not None]


def clip_grad_norm_(
    parameters: CustomTensor | Iterable[CustomTensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> CustomTensor:
    """Scale all gradients so that their total norm is at most `max_norm`; returns the old norm.

    Raises BadInput for a norm of NaN or infinity if `error_if_nonfinite`; nothing is changed
    then.
    """
    gradients = _gradients(parameters)
    max_norm, norm_type = _number("max_norm", max_norm), _number("norm_type", norm_type)
    if max_norm < 0 or norm_type <= 0:
        raise BadInput(
            f"gradients cannot be clipped to max_norm={max_norm} by norm_type={norm_type}",
            expected="a norm from 0 up, of a type above 0",
        )
    if not gradients:
        return CustomTensor(0.0)
    norms = [_norm(g.data, norm_type) for g in gradients]
    total = _norm(numpy.asarray(norms), norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise BadInput(
            f"the norm of the gradients is {total}",
            expected="finite gradients",
            hint="error_if_nonfinite=False, or a smaller learning rate",
        )
    share = min(max_norm / (total + 1e-6), 1.0)  # a NaN stays one, as in torch
    if share != 1.0:
        for gradient in gradients:
            array = gradient.data
            fill(gradient, array * numpy.asarray(share, array.dtype))
    first = gradients[0]
    return CustomTensor(numpy.asarray(total), first.device, first.dtype)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as exc:
        raise BadInput(f"{name}={value!r} is not a number", expected="a number") from exc


def _norm(array: Any, kind: float) -> float:
    """One tensor's norm; squares are summed in float64 to avoid overflow."""
    flat = numpy.abs(array.ravel()).astype(numpy.float64)
    return float(numpy.linalg.norm(flat, kind)) if flat.size else 0.0


def clip_grad_value_(
    parameters: CustomTensor | Iterable[CustomTensor],
    clip_value: float,
    foreach: bool | None = None,
) -> None:
    """Clip every gradient to [-clip_value, clip_value]."""
    bound = abs(_number("clip_value", clip_value))
    for gradient in _gradients(parameters):
        array = gradient.data
        limit = numpy.asarray(bound, array.dtype)
        fill(gradient, numpy.clip(array, -limit, limit))


def parameters_to_vector(parameters: Iterable[CustomTensor]) -> CustomTensor:
    """All parameters, flattened and concatenated."""
    return F.cat([F.reshape(p, [-1]) for p in parameters], 0)
