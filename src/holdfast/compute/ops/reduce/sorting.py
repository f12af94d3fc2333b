"""Sorting and what depends on order: topk, median, mode, quantiles."""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import (
    LIKE_SELF,
    Meta,
    normalize_dim,
    reduction,
    rule,
    with_indices,
)
from holdfast.compute.ops.table import Op, composite, op


def _infer_sorted_values(_: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    dim = normalize_dim(bound["dim"], len(of.shape))
    return Meta(tuple(bound["k"] if d == dim else n for d, n in enumerate(of.shape)), of.dtype)


_REDUCED = reduction()
_SORTED, _TOP, _ONE = (
    with_indices(LIKE_SELF),
    with_indices(rule(_infer_sorted_values)),
    with_indices(_REDUCED),
)
_BACK_ALL = {"self": "split_among_equals(grad, self, result, None, False)"}
_BACK = {"self": "scatter_back(grad, self.shape, dim, result1)"}
_BACK_ONE = {"self": "scatter_back(grad, self.shape, dim, result1, keepdim)"}

op("sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
   _SORTED, _BACK)  # fmt: skip
op("sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> "
   "(Tensor values, Tensor indices)", _SORTED, _BACK)  # fmt: skip
op("topk(Tensor self, int k, int dim=-1, bool largest=True, bool sorted=True) -> "
   "(Tensor values, Tensor indices)", _TOP, _BACK)  # fmt: skip
op("kthvalue(Tensor self, int k, int dim=-1, bool keepdim=False) -> "
   "(Tensor values, Tensor indices)", _ONE, _BACK_ONE)  # fmt: skip
op("median(Tensor self) -> Tensor", _REDUCED, _BACK_ALL)
op("median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
   _ONE, _BACK_ONE)  # fmt: skip
op("nanmedian(Tensor self) -> Tensor", _REDUCED, _BACK_ALL)
op("nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
   _ONE, _BACK_ONE)  # fmt: skip
op("mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
   _ONE, _BACK_ONE)  # fmt: skip


@composite("msort(Tensor self) -> Tensor")
def _msort(self: Any) -> Any:
    return F.sort(self, 0)[0]


@composite("argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor")
def _argsort(self: Any, dim: int = -1, descending: bool = False) -> Any:
    return F.sort(self, dim, descending)[1]


@composite(
    "argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor"
)
def _argsort_stable(self: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return F.sort(self, dim, descending)[1]


# ---- quantiles

_HOW = "int? dim=None, bool keepdim=False, *, str interpolation='linear'"


@composite(f"quantile(Tensor self, Tensor q, {_HOW}) -> Tensor")
def _quantile(
    self: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    return _quantiles(self, q, dim, keepdim, interpolation, skip=False)


@composite(f"quantile.scalar(Tensor self, float q, {_HOW}) -> Tensor")
def _quantile_scalar(
    self: Any, q: float, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    return _quantiles(self, self._new(q), dim, keepdim, interpolation, skip=False)


@composite(f"nanquantile(Tensor self, Tensor q, {_HOW}) -> Tensor")
def _nanquantile(
    self: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    return _quantiles(self, q, dim, keepdim, interpolation, skip=True)


@composite(f"nanquantile.scalar(Tensor self, float q, {_HOW}) -> Tensor")
def _nanquantile_scalar(
    self: Any, q: float, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    return _quantiles(self, self._new(q), dim, keepdim, interpolation, skip=True)


def _quantiles(
    self: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool
) -> Any:
    """The elements at these quantiles; several quantiles add a leading dimension."""
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise ValueError(f"there is no interpolation {interpolation!r}")
    if q.ndim > 1:
        raise ValueError(f"q has {q.ndim} dimensions, one at most is expected")
    along = normalize_dim(dim, self.ndim) if dim is not None else 0
    rows = F.movedim(self, along, -1) if dim is not None and self.ndim else F.reshape(self, [-1])
    ordered = F.sort(rows, -1)[0]
    ranks = _ranks(ordered, F.reshape(q, [-1]), skip)
    found = _between(ordered, ranks, interpolation)  # [..., shares]
    if keepdim and dim is not None and self.ndim:
        found = F.unsqueeze(found, along)
    elif keepdim:
        found = F.reshape(found, [*[1] * self.ndim, -1])
    return F.squeeze(found, -1) if q.ndim == 0 else F.movedim(found, -1, 0)


def _ranks(ordered: Any, q: Any, skip: bool) -> Any:
    """The fractional index of a quantile in each sorted row; NaN sorts last."""
    missing = F.isnan(ordered)
    if skip:
        count = F.sum(F.logical_not(missing), -1, True)
        return F.clamp(F.mul(q, F.sub(F._to_copy(count, dtype=q.dtype), 1)), 0)
    last = ordered.shape[-1] - 1
    spread = F.expand(F.mul(q, last), [*ordered.shape[:-1], q.shape[0]])
    return F.masked_fill(spread, F.any(missing, -1, True), last)


def _between(ordered: Any, ranks: Any, interpolation: str) -> Any:
    """Interpolate between the elements at fractional ranks."""
    if interpolation == "nearest":
        return F.gather(ordered, -1, F._to_copy(F.round(ranks), dtype=dtypes.INT64))
    low, high = F.floor(ranks), F.ceil(ranks)
    below = F.gather(ordered, -1, F._to_copy(low, dtype=dtypes.INT64))
    if interpolation == "lower":
        return below
    above = F.gather(ordered, -1, F._to_copy(high, dtype=dtypes.INT64))
    if interpolation == "higher":
        return above
    share = F.sub(ranks, low) if interpolation == "linear" else F.full_like(ranks, 0.5)
    return F.lerp(below, above, share)
