"""Products of matrices and vectors, sums with products, triangles, traces, `linear`."""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
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


def check_product(one: Any, other: Any) -> None:
    """Raise TypeError or ValueError unless two arrays have a matrix product."""
    if one.dtype != other.dtype:
        raise TypeError(f"{one.dtype} and {other.dtype} are not multiplied with each other")
    if not one.ndim or not other.ndim:
        raise ValueError("a scalar is not a matrix")
    columns, rows = one.shape[-1], other.shape[-2:][0]
    if columns != rows:
        raise ValueError(f"{columns} columns do not match {rows} rows")
    if one.ndim > 2 and other.ndim > 2 and one.shape[:-2] != other.shape[:-2]:
        batches = one.shape[:-2], other.shape[:-2]
        try:
            numpy.broadcast_shapes(*batches)
        except ValueError:
            listed = " and of ".join(str(list(batch)) for batch in batches)
            raise ValueError(f"batches of {listed} do not broadcast") from None


def _check_ndim(ndim: int, **arrays: Any) -> None:
    for name, array in arrays.items():
        if array.ndim != ndim:
            raise ValueError(f"{name} has {array.ndim} dimensions, not {ndim}")


def _check_pair(names: Any, ndims: Any, one: Any, other: Any) -> None:
    if (one.ndim, other.ndim) != ndims:
        for name, array, ndim in zip(names, (one, other), ndims, strict=True):
            _check_ndim(ndim, **{name: array})
    if ndims == (3, 3) and one.shape[0] != other.shape[0]:
        raise ValueError(f"batches of {one.shape[0]} and of {other.shape[0]} matrices")


def _check_sum(
    names: Any, ndims: Any, base: Any, one: Any, other: Any, beta: Any = 1, alpha: Any = 1
) -> None:
    _check_pair(names, ndims, one, other)
    if base.dtype != one.dtype:
        raise TypeError(f"{base.dtype} and {one.dtype} are not added to each other")


def _product(first: str, second: str, expects: str, *ndims: int) -> Rule:
    """A product of two arguments with `ndims` dimensions, added to `self` if that is neither."""

    def infer(_: Op, bound: dict[str, Any]) -> Meta:
        one, other = bound[first], bound[second]
        return Meta(_shape_of_product(one.shape, other.shape), one.dtype)

    check = _check_sum if first != "self" else _check_pair
    names = (first, second)
    return rule(infer, expects, functools.partial(check, names, ndims) if ndims else None)


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
op("mm(Tensor self, Tensor mat2) -> Tensor",
   _product("self", "mat2", f"2-D tensors: {_MEET}", 2, 2),
   {"self": "mm(grad, adjoint(mat2))", "mat2": "mm(adjoint(self), grad)"})  # fmt: skip
op("bmm(Tensor self, Tensor mat2) -> Tensor",
   _product("self", "mat2", f"3-D tensors with equally many matrices: {_MEET}", 3, 3),
   {"self": "bmm(grad, adjoint(mat2))", "mat2": "bmm(adjoint(self), grad)"})  # fmt: skip
op("mv(Tensor self, Tensor vec) -> Tensor",
   _product("self", "vec", "a matrix, and a vector as long as its rows", 2, 1),
   {"self": "outer(grad, conj(vec))", "vec": "mv(adjoint(self), grad)"})  # fmt: skip
op("dot(Tensor self, Tensor tensor) -> Tensor",
   _product("self", "tensor", "two vectors of one length and dtype", 1, 1),
   {"self": "grad * conj(tensor)", "tensor": "grad * conj(self)"})  # fmt: skip
op("vdot(Tensor self, Tensor other) -> Tensor",
   _product("self", "other", "two vectors of one length and dtype", 1, 1),
   {"self": "conj(grad) * other", "other": "grad * self"})  # fmt: skip
op("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
   rule(lambda _, bound: Meta((*bound["input"].shape[:-1], *bound["weight"].shape[:-1]),
                              bound["input"].dtype),
        "input (…, features in), weight (features out, features in), bias "
        "(features out)"),
   {"input": "linear_input(grad, weight)", "weight": "linear_weight(grad, input, weight.ndim)",
    "bias": "grad"})  # fmt: skip

# ---- sums with a product

op("addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("mat1", "mat2", _ADDED, 2, 2),
   {"self": "grad * conj(beta)", "mat1": "times(mm(grad, adjoint(mat2)), conj(alpha))",
    "mat2": "times(mm(adjoint(mat1), grad), conj(alpha))"})  # fmt: skip
op("baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("batch1", "batch2", _ADDED, 3, 3),
   {"self": "grad * conj(beta)", "batch1": "times(bmm(grad, adjoint(batch2)), conj(alpha))",
    "batch2": "times(bmm(adjoint(batch1), grad), conj(alpha))"})  # fmt: skip
op("addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   _product("mat", "vec", "a matrix, a vector as long as its rows, and one as its columns", 2, 1),
   {"self": "grad * conj(beta)", "mat": "times(outer(grad, conj(vec)), conj(alpha))",
    "vec": "times(mv(adjoint(mat), grad), conj(alpha))"})  # fmt: skip


def _addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_sum(("batch1", "batch2"), (3, 3), self, batch1, batch2)
    check_product(batch1, batch2)
    # One long product sums over the batch.
    count, rows, inner = batch1.shape
    side = F.reshape(F.transpose(batch1, 0, 1), [rows, count * inner])
    below = F.reshape(batch2, [count * inner, batch2.shape[2]])
    return F.addmm(self, side, below, beta=beta, alpha=alpha)


def _addr(self: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_ndim(1, vec1=vec1, vec2=vec2)
    base, one, other = (x.to(dtypes.result_type(self, vec1, vec2)) for x in (self, vec1, vec2))
    return F.addmm(base, F.unsqueeze(one, 1), F.unsqueeze(other, 0), beta=beta, alpha=alpha)


op("addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   rule(expects=_ADDED), decomposition=_addbmm)  # fmt: skip
op("addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
   rule(expects="two vectors, and a tensor that broadcasts to their outer product"),
   decomposition=_addr)  # fmt: skip


# ---- parts of matrices, and others

op("tril(Tensor self, int diagonal=0) -> Tensor", _MATRICES, {"self": "tril(grad, diagonal)"})
op("triu(Tensor self, int diagonal=0) -> Tensor", _MATRICES, {"self": "triu(grad, diagonal)"})
op("_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, "
   "int[] sumdim, int unroll_dim=1) -> Tensor", rule(_infer_trilinear),
   {"i1": "_trilinear(grad, conj(i2), conj(i3), sumdim, expand2, expand3, expand1)",
    "i2": "_trilinear(conj(i1), grad, conj(i3), expand1, sumdim, expand3, expand2)",
    "i3": "_trilinear(conj(i1), conj(i2), grad, expand1, expand2, sumdim, expand3)",
    })  # fmt: skip


def _trace(self: Any) -> Any:
    _check_ndim(2, self=self)
    return F.sum(F.diagonal(self))


def _cross(self: Any, other: Any, dim: int = -1) -> Any:
    if self.ndim != other.ndim:
        raise ValueError(f"{self.ndim} and {other.ndim} dimensions")
    if self.shape[dim] != 3 or other.shape[dim] != 3:
        raise ValueError(f"sizes {self.shape[dim]} and {other.shape[dim]} along {dim}, not 3")
    # Element i is self[i + 1] * other[i + 2] - self[i + 2] * other[i + 1].
    one, two = (F.roll(x, -1, dim) for x in (self, other))
    return one * F.roll(other, -2, dim) - F.roll(self, -2, dim) * two


def _block_diag(tensors: Any) -> Any:
    if any(t.ndim > 2 for t in tensors):
        raise ValueError("a block has more than 2 dimensions")
    blocks = [F.reshape(t, (1, 1, *t.shape)[-2:]) for t in tensors]
    width, rows, start = sum(b.shape[1] for b in blocks), [], 0
    for block in blocks:
        end = start + block.shape[1]
        rows.append(F.constant_pad_nd(block, [start, width - end], 0))
        start = end
    return F.cat(rows)


op("trace(Tensor self) -> Tensor", rule(expects="a matrix"), decomposition=_trace)
op("linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor",
   rule(expects="equally many dimensions, the one of the product with 3 elements"),
   decomposition=_cross)  # fmt: skip
op("block_diag(Tensor[] tensors) -> Tensor", rule(expects="tensors of at most 2 dimensions"),
   decomposition=_block_diag)  # fmt: skip
