"""Reductions: sums, products, extremes, moments, any and all.

The gradient of an extreme goes to the chosen index, or is split among equal elements if no index
is returned.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, reduction, rule, sized, with_indices
from holdfast.compute.ops.table import Op, composite, op

SUM, SAME = reduction("sum"), reduction()
REAL, INDEX = reduction("real"), reduction("index")

# ---- sums, products, means

op("sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", SUM,
   {"self": "expand(grad, self.shape)"})  # fmt: skip
op("sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None)"
   " -> Tensor", SUM, {"self": "spread(grad, self.shape, dim, keepdim)"})  # fmt: skip
op("nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)"
   " -> Tensor", SUM,
   {"self": "spread(grad, self.shape, dim, keepdim) * logical_not(isnan(self))"})  # fmt: skip
op("mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", SAME,
   {"self": "expand(grad, self.shape) / prod_of(self.shape)"})  # fmt: skip
op("mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
   SAME,
   {"self": "spread(grad, self.shape, dim, keepdim) / size_over(self.shape, dim)"})  # fmt: skip
op("prod(Tensor self, *, ScalarType? dtype=None) -> Tensor", SUM,
   {"self": "prod_gradient(grad, self, result, None, False)"})  # fmt: skip
op("prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
   SUM, {"self": "prod_gradient(grad, self, result, dim, keepdim)"})  # fmt: skip


@composite("nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)"
           " -> Tensor")  # fmt: skip
def nanmean(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    there = F.logical_not(F.isnan(self))
    counted = F.sum(there, dim, keepdim)
    return F.div(F.nansum(self, dim, keepdim, dtype=dtype), counted)


# ---- extremes


_BACK = "value_selecting_reduction_backward(grad, dim, result1, self.shape, keepdim)"


def _like(of: Any, op: Op, bound: dict[str, Any]) -> Any:
    """What another rule foretells."""
    return of.infer(op, bound)


for _name in ("amax", "amin"):
    op(f"{_name}(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", SAME,
       {"self": "split_among_equals(grad, self, result, dim, keepdim)"})  # fmt: skip
for _name in ("max", "min"):
    op(f"{_name}(Tensor self) -> Tensor", SAME,
       {"self": "split_among_equals(grad, self, result, None, False)"})  # fmt: skip
    op(f"{_name}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
       with_indices(SAME), {"self": _BACK})  # fmt: skip


@composite("max.other(Tensor self, Tensor other) -> Tensor")
def max_other(self: Any, other: Any) -> Any:
    return F.maximum(self, other)


@composite("min.other(Tensor self, Tensor other) -> Tensor")
def min_other(self: Any, other: Any) -> Any:
    return F.minimum(self, other)


op("value_selecting_reduction_backward(Tensor grad, int dim, Tensor indices, int[] sizes,"
   " bool keepdim) -> Tensor", sized("sizes", "grad"),
   {"grad": "gather_chosen(grad, dim, indices, keepdim)"})  # fmt: skip


def _infer_pair(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    values = _like(SAME, op, bound)
    return values, values


op("aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
   rule(_infer_pair),
   {"self": "split_among_equals(grads[0], self, result0, dim, keepdim)"
            " + split_among_equals(grads[1], self, result1, dim, keepdim)"})  # fmt: skip
op("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", INDEX)
op("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", INDEX)

# ---- any, all, counts


def _infer_bool_reduction(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    kind = of.dtype if of.dtype == dtypes.DTYPES["uint8"] else dtypes.BOOL
    if op.schema.overload == "dims" and bound["dim"] is not None and not len(bound["dim"]):
        return Meta(tuple(of.shape), kind)
    found = _like(SAME, op, bound)
    return Meta(found.shape, kind)


TRUTH = rule(_infer_bool_reduction)
for _name in ("all", "any"):
    op(f"{_name}(Tensor self) -> Tensor", TRUTH)
    op(f"{_name}.dim(Tensor self, int dim, bool keepdim=False) -> Tensor", TRUTH)
    op(f"{_name}.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor", TRUTH)
op("count_nonzero(Tensor self, int? dim=None) -> Tensor", INDEX)
op("count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", INDEX)
op("equal(Tensor self, Tensor other) -> bool")
op("allclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False)"
   " -> bool")  # fmt: skip


def _infer_hash(op: Op, bound: dict[str, Any]) -> Meta:
    found = _like(SAME, op, bound)
    return Meta(found.shape, dtypes.DTYPES["uint64"])


op("hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor",
   rule(_infer_hash))  # fmt: skip

# ---- moments


def _infer_with_mean(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    spread = _like(REAL, op, bound)
    return spread, Meta(spread.shape, bound["self"].dtype)


_MOMENT = "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False)"
_VAR = "var_gradient({grad}, self, dim, correction, keepdim)"
_STD = "var_gradient(sqrt_grad({grad}, {result}), self, dim, correction, keepdim)"
_MEAN = " + spread(grads[1], self.shape, dim, keepdim) / size_over(self.shape, dim)"

# The overloads with `unbiased` come first: a call with a bare tensor means them.
for _name in ("var", "std", "var_mean", "std_mean"):
    _out = "(Tensor, Tensor)" if _name.endswith("mean") else "Tensor"

    def _unbiased(self: Any, unbiased: bool = True, name: str = _name) -> Any:
        return getattr(F, name)(self, None, correction=int(unbiased))

    def _by_dim(
        self: Any, dim: Any, unbiased: bool = True, keepdim: bool = False, name: str = _name
    ) -> Any:
        return getattr(F, name)(self, dim, correction=int(unbiased), keepdim=keepdim)

    composite(f"{_name}(Tensor self, bool unbiased=True) -> {_out}")(_unbiased)
    composite(f"{_name}.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False)"
              f" -> {_out}")(_by_dim)  # fmt: skip

op(f"var.correction{_MOMENT} -> Tensor", REAL, {"self": _VAR.format(grad="grad")})
op(f"std.correction{_MOMENT} -> Tensor", REAL, {"self": _STD.format(grad="grad", result="result")})
op(f"var_mean.correction{_MOMENT} -> (Tensor, Tensor)", rule(_infer_with_mean),
   {"self": _VAR.format(grad="grads[0]") + _MEAN})  # fmt: skip
op(f"std_mean.correction{_MOMENT} -> (Tensor, Tensor)", rule(_infer_with_mean),
   {"self": _STD.format(grad="grads[0]", result="result0") + _MEAN})  # fmt: skip


def _infer_logsumexp(op: Op, bound: dict[str, Any]) -> Meta:
    found = _like(SAME, op, bound)
    return Meta(found.shape, dtypes.with_fractions(found.dtype))


op("logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", rule(_infer_logsumexp),
   {"self": "logsumexp_gradient(grad, self, result, dim, keepdim)"})  # fmt: skip
