"""Ops that draw random numbers from the generator of `holdfast.compute.random`.

For one seed they are the numbers that torch draws on a CPU, up to rounding of logarithms.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.layout.factory import LIKE, SIZED
from holdfast.compute.ops.rules import LIKE_SELF, Meta, rule
from holdfast.compute.ops.table import Op, op

_NAMED = "*, ScalarType? dtype={}) -> Tensor"
for _text in (
    *("rand(int[] size", "randn(int[] size"),
    *("randint(int high, int[] size", "randint.low(int low, int high, int[] size"),
):
    op(f"{_text}, {_NAMED.format('long' if 'int high' in _text else 'None')}", SIZED, effect=True)
for _text in (
    *("rand_like(Tensor self", "randn_like(Tensor self", "randint_like(Tensor self, int high"),
    *("randint_like.low_dtype(Tensor self, int low, int high",),
    *("randint_like.Tensor(Tensor self, Tensor high",),
):
    op(f"{_text}, {_NAMED.format('None')}", LIKE, effect=True)


op("randperm(int n, *, ScalarType? dtype=long) -> Tensor",
   rule(lambda _, b: Meta((b["n"],), dtypes.dtype_or(b["dtype"], dtypes.INT64))),
   effect=True)  # fmt: skip

# ---- in the shape of a tensor

for _text in (
    "uniform(Tensor self, float from=0., float to=1.)",
    "normal_functional(Tensor self, float mean=0., float std=1.)",
    "log_normal(Tensor self, float mean=1., float std=2.)",
    "cauchy(Tensor self, float median=0., float sigma=1.)",
    "exponential(Tensor self, float lambd=1.)",
    "geometric(Tensor self, float p)",
    "random(Tensor self)",
    "random.to(Tensor self, int to)",
    "random.from(Tensor self, int from, int? to)",
    "bernoulli(Tensor self)",
    "bernoulli.p(Tensor self, float p=0.5)",
):
    op(f"{_text} -> Tensor", LIKE_SELF, {"self": "zeros_like(grad)"}, effect=True)

# ---- with parameters for each element

op("bernoulli.Tensor(Tensor self, Tensor p) -> Tensor", LIKE_SELF,
   {"self": "zeros_like(grad)", "p": "zeros_like(p)"}, effect=True)  # fmt: skip


def _infer_random(op: Op, bound: dict[str, Any]) -> Meta:
    given = [bound[n] for n in ("mean", "std") if hasattr(bound[n], "shape")]
    shape = numpy.broadcast_shapes(*(one.shape for one in given))
    return Meta(shape, dtypes.result_type(*given))


for _text, _lines in (
    ("Tensor_float(Tensor mean, float std=1.)", {"mean": "zeros_like(grad)"}),
    ("float_Tensor(float mean, Tensor std)", {"std": "zeros_like(grad)"}),
    ("Tensor_Tensor(Tensor mean, Tensor std)",
     {"mean": "zeros_like(mean)", "std": "zeros_like(std)"}),
):  # fmt: skip
    op(f"normal.{_text} -> Tensor", rule(_infer_random), _lines, effect=True)
op("normal.float_float(float mean, float std, int[] size, *, ScalarType? dtype=None) -> Tensor",
   SIZED, effect=True)  # fmt: skip


op("multinomial(Tensor self, int num_samples, bool replacement=False) -> Tensor",
   rule(lambda _, b: Meta((*b["self"].shape[:-1], b["num_samples"]), dtypes.INT64)),
   effect=True)  # fmt: skip
