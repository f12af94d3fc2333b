"""Products of matrices and vectors, sums with products, triangles, traces, `linear`."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.rules import Meta, Rule, like, normalize_dim, rule
from holdfast.compute.ops.table import Op, op

_MEET = "the columns of the first to be the rows of the second, and one dtype"
_ADDED = f"{_MEET}, and a tensor that broadcasts to the product"


def _shape_of_product(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """As numpy.matmul: a vector is a row on the left, a column on the right."""
    if len(one) == 1 or len(other) == 1:
        return (*one[:-1], *other[:-2], *(other[-1:] if len(other) > 1 else ()))
    batch = numpy.broadcast_shapes(one[:-2], other[:-2])
    return (*batch, one[-2], other[-1])


def _product(first: str, second: str, expects: str) -> Rule:
    def infer(_: Op, bound: dict[str, Any]) -> Meta:
        one, other = bound[first], bound[second]
        return Meta(_shape_of_product(one.shape, other.shape), one.dtype)

    return rule(infer, expects)


def _infer_linear(_: Op, bound: dict[str, Any]) -> Meta:
    of, weight = bound["input"], bound["weight"]
    return Meta((*of.shape[:-1], *weight.shape[:-1]), of.dtype)


def _infer_add_product(_: Op, bound: dict[str, Any]) -> Meta:
    one, other = bound["batch1"], bound["batch2"]
    return Meta((one.shape[1], other.shape[2]), one.dtype)


def _infer_outer(_: Op, bound: dict[str, Any]) -> Meta:
    base, one, other = bound["self"], bound["vec1"], bound["vec2"]
    kind = dtypes.promote(base.dtype, dtypes.promote(one.dtype, other.dtype))
    return Meta((one.shape[0], other.shape[0]), kind)


def _infer_trace(_: Op, bound: dict[str, Any]) -> Meta:
    return Meta((), dtypes.of_sums(bound["self"].dtype))


def _infer_cross(_: Op, bound: dict[str, Any]) -> Meta:
    one, other = bound["self"], bound["other"]
    shape = numpy.broadcast_shapes(one.shape, other.shape)
    return Meta(shape, dtypes.promote(one.dtype, other.dtype))


def _infer_blocks(_: Op, bound: dict[str, Any]) -> Meta:
    shapes = [(1, 1, *t.shape)[-2:] for t in bound["tensors"]]
    kind = dtypes.result_type(*bound["tensors"])
    return Meta((sum(s[0] for s in shapes), sum(s[1] for s in shapes)), kind)


def _infer_trilinear(_: Op, bound: dict[str, Any]) -> Meta:
    shapes = []
    for place in ("1", "2", "3"):
        shape, expanded = list(bound[f"i{place}"].shape), bound[f"expand{place}"]
        ndim = len(shape) + len(expanded)
        for dim in sorted(normalize_dim(d, ndim) for d in expanded):
            shape.insert(dim, 1)
        shapes.append(tuple(shape))
    whole = numpy.broadcast_shapes(*shapes)
    summed = {normalize_dim(d, len(whole)) for d in bound["sumdim"]}
    return Meta(tuple(n for d, n in enumerate(whole) if d not in summed), bound["i1"].dtype)


_MATRICES = like("self", expects="a matrix, or a batch of them")

# ---- products

op("matmul(Tensor self, Tensor other) -> Tensor", _product("self", "other", _MEET),
   {"self": "matmul_first(grad, self.ndim, other)",
    "other": "matmul_second(grad, self, other.ndim)"})  # fmt: skip
op("mm(Tensor self, Tensor mat2) -> Tensor", _product("self", "mat2", f"2-D tensors: {_MEET}"),
   {"self": "mm(grad, adjoint(mat2))", "mat2": "mm(adjoint(self), grad)"})  # fmt: skip
op("bmm(Tensor self, Tensor mat2) -> Tensor",
   _product("self", "mat2", f"3-D tensors with equally many matrices: {_MEET}"),
   {"self": "bmm(grad, adjoint(mat2))", "mat2": "bmm(adjoint(self), grad)"})  # fmt: skip
op("mv(Tensor self, Tensor vec) -> Tensor",
   _product("self", "vec", "a matrix, and a vector as long as its rows"),
   {"self": "outer(grad, conj(vec))", "vec": "mv(adjoint(self), grad)"})  # fmt: skip
op("dot(Tensor self, Tensor tensor) -> Tensor",
   _product("self", "tensor", "two vectors of one length and dtype"),
   {"self": "grad * conj(tensor)", "tensor": "grad * conj(self)"})  # fmt: skip
op("vdot(Tensor self, Tensor other) -> Tensor",
   _product("self", "other", "two vectors of one length and dtype"),
   {"self": "conj(grad) * other", "other": "grad * self"})  # fmt: skip
op("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
   rule(_infer_linear, "input (…, features in), weight (features out, features in), bias "
                       "(features out)"),
   {"input": "linear_input(grad, weight)", "weight": "linear_weight(grad, input, weight.ndim)",
    "bias": "grad"})  # fmt: skip

# ---- sums with a product

op("addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("mat1", "mat2", _ADDED),
   {"self": "grad * conj(beta)", "mat1": "times(mm(grad, adjoint(mat2)), conj(alpha))",
    "mat2": "times(mm(adjoint(mat1), grad), conj(alpha))"})  # fmt: skip
op("baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("batch1", "batch2", _ADDED),
   {"self": "grad * conj(beta)", "batch1": "times(bmm(grad, adjoint(batch2)), conj(alpha))",
    "batch2": "times(bmm(adjoint(batch1), grad), conj(alpha))"})  # fmt: skip
op("addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   rule(_infer_add_product, _ADDED),
   {"self": "grad * conj(beta)", "batch1": "times(matmul(grad, adjoint(batch2)), conj(alpha))",
    "batch2": "times(matmul(adjoint(batch1), grad), conj(alpha))"})  # fmt: skip
op("addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("mat", "vec", "a matrix, a vector as long as its rows, and one as its columns"),
   {"self": "grad * conj(beta)", "mat": "times(outer(grad, conj(vec)), conj(alpha))",
    "vec": "times(mv(adjoint(mat), grad), conj(alpha))"})  # fmt: skip
op("addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   rule(_infer_outer, "two vectors, and a tensor that broadcasts to their outer product"),
   {"self": "grad * conj(beta)", "vec1": "times(mv(grad, conj(vec2)), conj(alpha))",
    "vec2": "times(mv(transpose(grad, 0, 1), conj(vec1)), conj(alpha))"})  # fmt: skip

# ---- parts of matrices, and others

op("tril(Tensor self, int diagonal=0) -> Tensor", _MATRICES, {"self": "tril(grad, diagonal)"})
op("triu(Tensor self, int diagonal=0) -> Tensor", _MATRICES, {"self": "triu(grad, diagonal)"})
op("trace(Tensor self) -> Tensor", rule(_infer_trace, "a matrix"),
   {"self": "grad * eye_like(grad, self.shape)"})  # fmt: skip
op("linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
   rule(_infer_cross, "equally many dimensions, the one of the product with 3 elements"),
   {"self": "linalg_cross(conj(other), grad, dim=dim)",
    "other": "linalg_cross(grad, conj(self), dim=dim)"})  # fmt: skip
op("block_diag(Tensor[] tensors) -> Tensor", rule(_infer_blocks, "tensors of at most 2 dimensions"),
   {"tensors": "blocks_of(grad, [t.shape for t in tensors])"})  # fmt: skip
op("_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, "
   "int[] sumdim, int unroll_dim=1) -> Tensor", rule(_infer_trilinear),
   {"i1": "_trilinear(grad, conj(i2), conj(i3), sumdim, expand2, expand3, expand1)",
    "i2": "_trilinear(conj(i1), grad, conj(i3), expand1, sumdim, expand3, expand2)",
    "i3": "_trilinear(conj(i1), conj(i2), grad, expand1, expand2, sumdim, expand3)",
    })  # fmt: skip
