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

_NONE = {"self": "zeros_like(grad)"}

op("rand(int[] size, *, ScalarType? dtype=None) -> Tensor", SIZED, effect=True)
op("randn(int[] size, *, ScalarType? dtype=None) -> Tensor", SIZED, effect=True)
op("rand_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", LIKE, effect=True)
op("randn_like(Tensor self, *, ScalarType? dtype=None) -> Tensor", LIKE, effect=True)
op("randint(int high, int[] size, *, ScalarType? dtype=long) -> Tensor", SIZED, effect=True)
op("randint.low(int low, int high, int[] size, *, ScalarType? dtype=long) -> Tensor", SIZED,
   effect=True)  # fmt: skip
op("randint_like(Tensor self, int high, *, ScalarType? dtype=None) -> Tensor", LIKE, effect=True)
op("randint_like.low_dtype(Tensor self, int low, int high, *, ScalarType? dtype=None) -> Tensor",
   LIKE, effect=True)  # fmt: skip
op("randint_like.Tensor(Tensor self, Tensor high, *, ScalarType? dtype=None) -> Tensor", LIKE,
   effect=True)  # fmt: skip


def _infer_permutation(op: Op, bound: dict[str, Any]) -> Meta:
    return Meta((bound["n"],), dtypes.dtype_or(bound["dtype"], dtypes.INT64))


op("randperm(int n, *, ScalarType? dtype=long) -> Tensor", rule(_infer_permutation), effect=True)

# ---- in the shape of a tensor

op("uniform(Tensor self, float from=0., float to=1.) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("normal_functional(Tensor self, float mean=0., float std=1.) -> Tensor", LIKE_SELF, _NONE,
   effect=True)  # fmt: skip
op("log_normal(Tensor self, float mean=1., float std=2.) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("cauchy(Tensor self, float median=0., float sigma=1.) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("exponential(Tensor self, float lambd=1.) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("geometric(Tensor self, float p) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("random(Tensor self) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("random.to(Tensor self, int to) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("random.from(Tensor self, int from, int? to) -> Tensor", LIKE_SELF, _NONE, effect=True)

# ---- with parameters for each element

op("bernoulli(Tensor self) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("bernoulli.p(Tensor self, float p=0.5) -> Tensor", LIKE_SELF, _NONE, effect=True)
op("bernoulli.Tensor(Tensor self, Tensor p) -> Tensor", LIKE_SELF,
   {"self": "zeros_like(grad)", "p": "zeros_like(p)"}, effect=True)  # fmt: skip


def _infer_random(op: Op, bound: dict[str, Any]) -> Meta:
    given = [bound[n] for n in ("mean", "std") if hasattr(bound[n], "shape")]
    shape = numpy.broadcast_shapes(*(one.shape for one in given))
    return Meta(shape, dtypes.result_type(*given))


op("normal.Tensor_float(Tensor mean, float std=1.) -> Tensor", rule(_infer_random),
   {"mean": "zeros_like(grad)"}, effect=True)  # fmt: skip
op("normal.float_Tensor(float mean, Tensor std) -> Tensor", rule(_infer_random),
   {"std": "zeros_like(grad)"}, effect=True)  # fmt: skip
op("normal.Tensor_Tensor(Tensor mean, Tensor std) -> Tensor", rule(_infer_random),
   {"mean": "zeros_like(mean)", "std": "zeros_like(std)"}, effect=True)  # fmt: skip
op("normal.float_float(float mean, float std, int[] size, *, ScalarType? dtype=None) -> Tensor",
   SIZED, effect=True)  # fmt: skip


def _infer_multinomial(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta((*of.shape[:-1], bound["num_samples"]), dtypes.INT64)


op("multinomial(Tensor self, int num_samples, bool replacement=False) -> Tensor",
   rule(_infer_multinomial), effect=True)  # fmt: skip
