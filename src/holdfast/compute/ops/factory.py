"""Ops that make tensors: zeros, ones, full, arange, linspace, eye; and copies of one.

Covers: factories and their `_like` and `new_` forms, clone, copy, fill, casting (`_to_copy`).
Leaves to others: random numbers (`random`).
"""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import dtype as formats
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, op


def _sized(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta(tuple(bound["size"]), formats.asked(bound["dtype"], formats.FLOAT32))


def _full(op: Op, bound: dict[str, Any]) -> Meta:
    kind = formats.asked(bound["dtype"], formats.of_scalar(bound["fill_value"]))
    return Meta(tuple(bound["size"]), kind)


def _like(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta(tuple(bound.get("size", of.shape)), formats.asked(bound["dtype"], of.dtype))


SIZED, LIKE, _FULL = rule(_sized), rule(_like), rule(_full)

# ---- one number everywhere

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


def _scalar(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta((), formats.asked(bound["dtype"], formats.FLOAT32))


op("scalar_tensor(Scalar s, *, ScalarType? dtype=None) -> Tensor", rule(_scalar))
op("fill.Scalar(Tensor self, Scalar value) -> Tensor", LIKE_SELF, {"self": "zeros_like(grad)"})
op("fill.Tensor(Tensor self, Tensor value) -> Tensor", LIKE_SELF,
   {"self": "zeros_like(grad)", "value": "grad"})  # fmt: skip
op("zero(Tensor self) -> Tensor", LIKE_SELF, {"self": "zeros_like(grad)"})

# ---- no numbers in particular

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

# ---- in steps


def range_format(*numbers: Any) -> Any:
    """What arange counts in: whole numbers where all it was given are."""
    whole = all(isinstance(n, int) for n in numbers)
    return formats.INT64 if whole else formats.FLOAT32


def range_length(start: Any, end: Any, step: Any, kind: Any) -> int:
    """How many numbers arange makes. Raises ValueError where it cannot get to its end.

    int64 counts in whole numbers, every other format in float64, and both as torch does.
    """
    if kind == formats.INT64:
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ValueError("a step of 0 leads nowhere")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ValueError(f"no range goes from {start} to {end}")
    if (end - start) * (1 if step > 0 else -1) < 0:
        raise ValueError(f"a step of {step} does not lead from {start} to {end}")
    if kind == formats.INT64:
        return len(range(start, end, step))
    return math.ceil((float(end) - float(start)) / float(step))


def _range(op: Op, bound: dict[str, Any]) -> Meta:
    start, end, step = bound.get("start", 0), bound["end"], bound.get("step", 1)
    kind = formats.asked(bound["dtype"], range_format(start, end, step))
    return Meta((range_length(start, end, step, kind),), kind)


op("arange(Scalar end, *, ScalarType? dtype=None) -> Tensor", rule(_range))
op("arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None) -> Tensor", rule(_range))
op("arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None)"
   " -> Tensor", rule(_range))  # fmt: skip


def spaced_format(start: Any, end: Any) -> Any:
    """What linspace answers in where nothing is asked for."""
    parts = [getattr(n, "dtype", None) or formats.of_scalar(n) for n in (start, end)]
    return formats.COMPLEX64 if any(map(formats.is_complex, parts)) else formats.FLOAT32


def _spaced(op: Op, bound: dict[str, Any]) -> Meta:
    kind = formats.asked(bound["dtype"], spaced_format(bound["start"], bound["end"]))
    return Meta((bound["steps"],), kind)


_SPACED = rule(_spaced)
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


def _eye(op: Op, bound: dict[str, Any]) -> Meta:
    columns = bound.get("m", bound["n"])
    return Meta((bound["n"], columns), formats.asked(bound["dtype"], formats.FLOAT32))


op("eye(int n, *, ScalarType? dtype=None) -> Tensor", rule(_eye))
op("eye.m(int n, int m, *, ScalarType? dtype=None) -> Tensor", rule(_eye))
