"""Gradients of indexing, scatter and sorting."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F


def scatter_back(grad: Any, shape: Any, dim: int, indices: Any, keepdim: bool = True) -> Any:
    """Scatter gradients of elements chosen along `dim` to their indices; zero elsewhere."""
    if not keepdim and len(shape):
        grad, indices = F.unsqueeze(grad, dim), F.unsqueeze(indices, dim)
    return F.scatter(F.new_zeros(grad, list(shape)), dim, indices, grad)


def pad_to_shape(grad: Any, shape: Any) -> Any:
    """Pad a gradient at the end of every dimension with zeros to `shape`."""
    if tuple(grad.shape) == tuple(shape):
        return grad
    padding: list[int] = []
    for size, there in zip(shape, grad.shape, strict=True):
        padding = [0, size - there, *padding]
    return F.constant_pad_nd(grad, padding, 0)


def scatter_reduce_backward(
    grad: Any, self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool,
    result: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Gradients of a reducing scatter, for the target and for the source."""
    shape = src.shape
    for axis, size in enumerate(index.shape):
        if src.shape[axis] != size:
            src = F.slice(src, axis, 0, size)
    if reduce in ("sum", "add"):
        found = grad, F.gather(grad, dim, index)
    elif reduce == "mean":
        ones = F.ones_like(src)
        counts = F.scatter_add(F.full_like(grad, int(include_self)), dim, index, ones)
        share = F.div(grad, F.clamp(counts, 1))
        found = share, F.gather(share, dim, index)
    elif reduce in ("prod", "multiply"):
        found = _product_backward(grad, self, dim, index, src, include_self)
    else:
        found = _extreme_backward(grad, self, dim, index, src, include_self, result)
    mine = found[0] if include_self else F.scatter(found[0], dim, index, 0)
    return mine, pad_to_shape(found[1], shape)


def _as(grad: Any, truth: Any) -> Any:
    return F._to_copy(truth, dtype=grad.dtype)


def _extreme_backward(
    grad: Any, self: Any, dim: int, index: Any, src: Any, include_self: bool, result: Any
) -> tuple[Any, Any]:
    """Split equally among all elements equal to the extreme."""
    mine = _as(grad, F.eq(self, result))
    theirs = _as(grad, F.eq(src, F.gather(result, dim, index)))
    start = mine if include_self else F.zeros_like(mine)
    share = F.div(grad, F.clamp(F.scatter_add(start, dim, index, theirs), 1))
    return F.mul(share, mine), F.mul(F.gather(share, dim, index), theirs)


def _product_backward(
    grad: Any, self: Any, dim: int, index: Any, src: Any, include_self: bool
) -> tuple[Any, Any]:
    """The product of all other factors; with one zero, only that element has a gradient."""
    zero_here, zero_there = F.eq(self, 0), F.eq(src, 0)
    safe_here, safe_there = F.masked_fill(self, zero_here, 1), F.masked_fill(src, zero_there, 1)
    product = F.scatter_reduce(safe_here, dim, index, safe_there, "prod", include_self=include_self)
    start = _as(grad, zero_here) if include_self else F.zeros_like(grad)
    zeros = F.scatter_add(start, dim, index, _as(grad, zero_there))
    whole = F.mul(grad, product)
    mine = F.mul(F.div(whole, safe_here), F.eq(zeros, _as(grad, zero_here)))
    others = F.eq(F.gather(zeros, dim, index), _as(grad, zero_there))
    return mine, F.mul(F.div(F.gather(whole, dim, index), safe_there), others)
