"""Ops that create tensors: zeros, full, arange, linspace, eye, their `_like` and `new_` forms;
copies and casts.
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.rules import LIKE_SELF, Meta, checked, rule
from holdfast.compute.ops.table import Op, op


def _infer_like(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(bound.get("size", of.shape)), dtypes.dtype_or(bound["dtype"], of.dtype))


SIZED = rule(lambda _, b: Meta(tuple(b["size"]), dtypes.dtype_or(b["dtype"], dtypes.FLOAT32)))
LIKE = rule(_infer_like)
_FULL = rule(
    lambda _, b: Meta(
        tuple(b["size"]), dtypes.dtype_or(b["dtype"], dtypes.of_scalar(b["fill_value"]))
    )
)

# ---- constant

for _name in ("zeros", "ones"):
    op(f"{_name}(int[] size, *, ScalarType? dtype=None) -> Tensor", SIZED)
    op(f"new_{_name}(Tensor self, int[] size, *, ScalarType? dtype=None) -> Tensor", LIKE)
for _name in ("zeros", "ones", "empty"):
    op(f"{_name}_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", LIKE)
op("full(int[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor", _FULL)
op("full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor", LIKE)
op(
    "new_full(Tensor self, int[] size, Scalar fill_value, *, ScalarType? dtype=None) -> Tensor",
    LIKE,
)


op("scalar_tensor(Scalar s, *, ScalarType? dtype=None) -> Tensor",
   rule(lambda _, b: Meta((), dtypes.dtype_or(b["dtype"], dtypes.FLOAT32))))  # fmt: skip


def _check_fill(self: Any, value: Any) -> None:
    if value.ndim:
        raise ValueError(f"fill takes a number or a tensor without dimensions, not {value.ndim}")


op("fill.Scalar(Tensor self, Scalar value) -> Tensor", LIKE_SELF, {"self": "zeros_like(grad)"})
op("fill.Tensor(Tensor self, Tensor value) -> Tensor", checked(LIKE_SELF, _check_fill),
   {"self": "zeros_like(grad)", "value": "grad"})  # fmt: skip
op("zero(Tensor self) -> Tensor", LIKE_SELF, {"self": "zeros_like(grad)"})

# ---- uninitialized

op("empty.memory_format(int[] size, *, ScalarType? dtype=None) -> Tensor", SIZED)
op("empty_strided(int[] size, int[] stride, *, ScalarType? dtype=None) -> Tensor", SIZED)
op("empty_permuted(int[] size, int[] physical_layout, *, ScalarType? dtype=None) -> Tensor", SIZED)
op("new_empty(Tensor self, int[] size, *, ScalarType? dtype=None) -> Tensor", LIKE)
op("new_empty_strided(Tensor self, int[] size, int[] stride, *, ScalarType? dtype=None) -> Tensor",
   LIKE)  # fmt: skip

# ---- copies

op("clone(Tensor self) -> Tensor", LIKE_SELF, {"self": "grad"})
op("_to_copy(Tensor self, *, ScalarType? dtype=None) -> Tensor", LIKE,
   {"self": "_to_copy(grad, dtype=self.dtype)"})  # fmt: skip
op("copy(Tensor self, Tensor src) -> Tensor", LIKE_SELF,
   {"self": "zeros_like(grad)", "src": "grad"})  # fmt: skip

# ---- ranges


def range_dtype(*numbers: Any) -> Any:
    """The dtype of arange: int64 if all arguments are integers."""
    whole = all(isinstance(n, int) for n in numbers)
    return dtypes.INT64 if whole else dtypes.FLOAT32


def range_length(start: Any, end: Any, step: Any, kind: Any) -> int:
    """The number of elements of arange. Raises ValueError if it cannot reach its end.

    As in torch, int64 counts in integers, every other dtype in float64.
    """
    if kind == dtypes.INT64:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ValueError("a step of 0 leads nowhere")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ValueError(f"no range goes from {start} to {end}")
    if (end - start) * (1 if step > 0 else -1) < 0:
        raise ValueError(f"a step of {step} does not lead from {start} to {end}")
    if kind == dtypes.INT64:
        return len(range(start, end, step))
    return math.ceil((float(end) - float(start)) / float(step))


def _infer_range(op: Op, bound: dict[str, Any]) -> Meta:
    start, end, step = bound.get("start", 0), bound["end"], bound.get("step", 1)
    kind = dtypes.dtype_or(bound["dtype"], range_dtype(start, end, step))
    return Meta((range_length(start, end, step, kind),), kind)


for _given in (
    "arange(Scalar end",
    "arange.start(Scalar start, Scalar end",
    "arange.start_step(Scalar start, Scalar end, Scalar step=1",
):
    op(f"{_given}, *, ScalarType? dtype=None) -> Tensor", rule(_infer_range))


def spaced_dtype(start: Any, end: Any) -> Any:
    """The default dtype of linspace."""
    parts = [getattr(n, "dtype", None) or dtypes.of_scalar(n) for n in (start, end)]
    return dtypes.COMPLEX64 if any(map(dtypes.is_complex, parts)) else dtypes.FLOAT32


def _infer_linspace(op: Op, bound: dict[str, Any]) -> Meta:
    kind = dtypes.dtype_or(bound["dtype"], spaced_dtype(bound["start"], bound["end"]))
    return Meta((bound["steps"],), kind)


_SPACED = rule(_infer_linspace)
for _overload, _one, _other in (
    ("", "Scalar", "Scalar"),
    (".Scalar_Tensor", "Scalar", "Tensor"),
    (".Tensor_Scalar", "Tensor", "Scalar"),
    (".Tensor_Tensor", "Tensor", "Tensor"),
):
    _ends = f"{_one} start, {_other} end, int steps"
    op(f"linspace{_overload}({_ends}, *, ScalarType? dtype=None) -> Tensor", _SPACED)
    op(
        f"logspace{_overload}({_ends}, float base=10., *, ScalarType? dtype=None) -> Tensor",
        _SPACED,
    )


def _infer_eye(op: Op, bound: dict[str, Any]) -> Meta:
    columns = bound.get("m", bound["n"])
    return Meta((bound["n"], columns), dtypes.dtype_or(bound["dtype"], dtypes.FLOAT32))


def _check_eye(n: int, m: int | None = None, dtype: Any = None) -> None:
    m = n if m is None else m
    if n < 0 or m < 0:
        raise ValueError(f"a matrix of {n} by {m} cannot be made")


_EYE = rule(_infer_eye, check=_check_eye)
op("eye(int n, *, ScalarType? dtype=None) -> Tensor", _EYE)
op("eye.m(int n, int m, *, ScalarType? dtype=None) -> Tensor", _EYE)
