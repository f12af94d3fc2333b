"""Sorting and what depends on order: topk, median, mode, quantiles."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.reduce.reduce import check_order
from holdfast.compute.ops.rules import (
    LIKE_SELF,
    Meta,
    checked,
    normalize_dim,
    reduction,
    rule,
    with_indices,
)
from holdfast.compute.ops.table import Op, composites, op


def _infer_sorted_values(_: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    dim = normalize_dim(bound["dim"], len(of.shape))
    return Meta(tuple(bound["k"] if d == dim else n for d, n in enumerate(of.shape)), of.dtype)


def _size_along(self: Any, dim: int) -> tuple[int, int]:
    """A dimension counted from 0, and its size; a scalar has one of size 1."""
    place = normalize_dim(dim, self.ndim)
    return place, self.shape[place] if self.ndim else 1


def _check_k(least: int, self: Any, k: int, dim: int = -1, *_: Any, **__: Any) -> None:
    place, size = _size_along(self, dim)
    if not least <= k <= size:
        raise ValueError(f"k is {k}, dimension {place} has the size {size}")


def _check_rows(name: str, self: Any, dim: int = -1, keepdim: bool = False) -> None:
    place, size = _size_along(self, dim)
    if not size:
        raise IndexError(f"dimension {place} has the size 0: there is no {name}")


_REDUCED = reduction()
_SORTED = checked(with_indices(LIKE_SELF), check_order)
_ONE = with_indices(_REDUCED)
_TOP = checked(with_indices(rule(_infer_sorted_values)), partial(_check_k, 0))
_KTH = checked(_ONE, partial(_check_k, 1))
_MEDIAN, _MODE = (checked(_ONE, partial(_check_rows, name)) for name in ("median", "mode"))
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
   "(Tensor values, Tensor indices)", _KTH, _BACK_ONE)  # fmt: skip
for _name in ("median", "nanmedian"):
    op(f"{_name}(Tensor self) -> Tensor", _REDUCED, _BACK_ALL)
    op(f"{_name}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
       _MEDIAN, _BACK_ONE)  # fmt: skip
op("mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
   _MODE, _BACK_ONE)  # fmt: skip


composites(
    {
        "msort(Tensor self) -> Tensor": lambda self: F.sort(self, 0)[0],
        "argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor": (
            lambda self, dim=-1, descending=False: F.sort(self, dim, descending)[1]
        ),
        "argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor":
        lambda self, *, stable, dim=-1, descending=False: F.sort(self, dim, descending)[1],
    }
)  # fmt: skip


# ---- quantiles


def _quantiles(
    skip: bool, self: Any, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Any:  # fmt: skip
    """The elements at these quantiles; several quantiles add a leading dimension."""
    q = q if hasattr(q, "ndim") else self._new(q)
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


_HOW = "int? dim=None, bool keepdim=False, *, str interpolation='linear'"
for _name, _skip in (("quantile", False), ("nanquantile", True)):
    composites(
        {
            f"{_name}(Tensor self, Tensor q, {_HOW}) -> Tensor": partial(_quantiles, _skip),
            f"{_name}.scalar(Tensor self, float q, {_HOW}) -> Tensor": partial(_quantiles, _skip),
        }
    )
