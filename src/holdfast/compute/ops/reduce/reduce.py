"""Reductions: sums, products, extremes, moments, any and all.

The gradient of an extreme goes to the chosen index, or is split among equal elements if no index
is returned.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import (
    Meta,
    checked,
    normalize_dims,
    reduction,
    rule,
    sized,
    with_indices,
)
from holdfast.compute.ops.table import Op, composite, composites, op

SUM, SAME = reduction("sum"), reduction()
REAL, INDEX = reduction("real"), reduction("index")
_infer_same: Any = SAME.infer
_infer_real: Any = REAL.infer


def check_order(self: Any, *_: Any, **__: Any) -> None:
    """Raise TypeError for complex elements."""
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")


def _check_extreme(self: Any, dim: Any = None, keepdim: bool = False) -> None:
    check_order(self)
    if 0 in self.shape and not all(self.shape[d] for d in normalize_dims(dim, self.ndim)):
        raise IndexError("an extreme over a dimension of size 0 does not exist")


def _check_nansum(self: Any, *_: Any, **__: Any) -> None:
    if self.dtype.kind == "c":
        raise TypeError("nansum does not take complex numbers")


def _check_mean(self: Any, *_: Any, dtype: Any = None, **__: Any) -> None:
    kind = dtypes.dtype_or(dtype, self.dtype)
    if dtypes.category(kind) < dtypes.FLOATING:
        raise TypeError(f"the mean of {kind} is not an integer; name a dtype, or cast first")


def _check_moments(self: Any, *_: Any, **__: Any) -> None:
    if dtypes.category(self.dtype) < dtypes.FLOATING:
        raise TypeError(f"a variance of {self.dtype} needs floating-point or complex numbers")


_EXTREME, _MEAN = checked(SAME, _check_extreme), checked(SAME, _check_mean)
_ARG = checked(INDEX, _check_extreme)

# ---- sums, products, means

op("sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", SUM,
   {"self": "expand(grad, self.shape)"})  # fmt: skip
op("sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None)"
   " -> Tensor", SUM, {"self": "spread(grad, self.shape, dim, keepdim)"})  # fmt: skip
op("nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)"
   " -> Tensor", checked(SUM, _check_nansum),
   {"self": "spread(grad, self.shape, dim, keepdim) * logical_not(isnan(self))"})  # fmt: skip
op("mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", _MEAN,
   {"self": "expand(grad, self.shape) / prod_of(self.shape)"})  # fmt: skip
op("mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
   _MEAN,
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


for _name in ("amax", "amin"):
    op(f"{_name}(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", _EXTREME,
       {"self": "split_among_equals(grad, self, result, dim, keepdim)"})  # fmt: skip
for _name in ("max", "min"):
    op(f"{_name}(Tensor self) -> Tensor", _EXTREME,
       {"self": "split_among_equals(grad, self, result, None, False)"})  # fmt: skip
    op(f"{_name}.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
       checked(with_indices(SAME), _check_extreme), {"self": _BACK})  # fmt: skip


composites(
    {
        "max.other(Tensor self, Tensor other) -> Tensor": lambda self, other: F.maximum(
            self, other
        ),
        "min.other(Tensor self, Tensor other) -> Tensor": lambda self, other: F.minimum(
            self, other
        ),
    }
)
op("value_selecting_reduction_backward(Tensor grad, int dim, Tensor indices, int[] sizes,"
   " bool keepdim) -> Tensor", sized("sizes", "grad"),
   {"grad": "gather_chosen(grad, dim, indices, keepdim)"})  # fmt: skip


def _infer_pair(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    values = _infer_same(op, bound)
    return values, values


op("aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
   rule(_infer_pair, check=_check_extreme),
   {"self": "split_among_equals(grads[0], self, result0, dim, keepdim)"
            " + split_among_equals(grads[1], self, result1, dim, keepdim)"})  # fmt: skip
op("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", _ARG)
op("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", _ARG)

# ---- any, all, counts


def _infer_bool_reduction(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    kind = of.dtype if of.dtype == dtypes.DTYPES["uint8"] else dtypes.BOOL
    if op.schema.overload == "dims" and bound["dim"] is not None and not len(bound["dim"]):
        return Meta(tuple(of.shape), kind)
    found = _infer_same(op, bound)
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
    found = _infer_same(op, bound)
    return Meta(found.shape, dtypes.DTYPES["uint64"])


op("hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor",
   rule(_infer_hash))  # fmt: skip

# ---- moments


def _infer_with_mean(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
    spread = _infer_real(op, bound)
    return spread, Meta(spread.shape, bound["self"].dtype)


_MOMENT = "(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False)"
_VAR = "var_gradient({grad}, self, dim, correction, keepdim)"
_STD = "var_gradient(sqrt_grad({grad}, {result}), self, dim, correction, keepdim)"
_ADD_MEAN = " + spread(grads[1], self.shape, dim, keepdim) / size_over(self.shape, dim)"

# The overloads with `unbiased` come first: a call with a bare tensor means them.
for _name in ("var", "std", "var_mean", "std_mean"):
    _out = "(Tensor, Tensor)" if _name.endswith("mean") else "Tensor"

    def _correct_bias(self: Any, unbiased: bool = True, name: str = _name) -> Any:
        return getattr(F, name)(self, None, correction=int(unbiased))

    def _by_dim(
        self: Any, dim: Any, unbiased: bool = True, keepdim: bool = False, name: str = _name
    ) -> Any:
        return getattr(F, name)(self, dim, correction=int(unbiased), keepdim=keepdim)

    composite(f"{_name}(Tensor self, bool unbiased=True) -> {_out}")(_correct_bias)
    op(f"{_name}.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False)"
       f" -> {_out}", rule(check=_check_moments), decomposition=_by_dim)  # fmt: skip

_MOMENTS = rule(_infer_with_mean, check=_check_moments)
_REAL = checked(REAL, _check_moments)
op(f"var.correction{_MOMENT} -> Tensor", _REAL, {"self": _VAR.format(grad="grad")})
op(f"std.correction{_MOMENT} -> Tensor", _REAL, {"self": _STD.format(grad="grad", result="result")})
op(f"var_mean.correction{_MOMENT} -> (Tensor, Tensor)", _MOMENTS,
   {"self": _VAR.format(grad="grads[0]") + _ADD_MEAN})  # fmt: skip
op(f"std_mean.correction{_MOMENT} -> (Tensor, Tensor)", _MOMENTS,
   {"self": _STD.format(grad="grads[0]", result="result0") + _ADD_MEAN})  # fmt: skip


def _infer_logsumexp(op: Op, bound: dict[str, Any]) -> Meta:
    found = _infer_same(op, bound)
    return Meta(found.shape, dtypes.with_fractions(found.dtype))


op("logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", rule(_infer_logsumexp),
   {"self": "logsumexp_gradient(grad, self, result, dim, keepdim)"})  # fmt: skip
