"""Writing at indices that may repeat: scatter and its reductions, index_put, index_add, put."""

from __future__ import annotations

import math
from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.index.resolve import (
    check_flat,
    check_put,
    check_reduction,
    check_rows,
    check_scatter,
)
from holdfast.compute.ops.rules import LIKE_SELF, checked, like, normalize_dim
from holdfast.compute.ops.table import composite, op

# ---- lists of indices


def _check_sizes(self: Any, index: Any, source: Any, accumulate: bool = False) -> None:
    count, elements = math.prod(index.shape), math.prod(source.shape)
    if count != elements:
        raise ValueError(f"{count} indices for {elements} elements")


_PUT = {
    "self": "grad if accumulate else index_put(grad, indices, new_zeros(grad, values.shape))",
    "values": "index(grad, indices)",
}
_TARGET = checked(LIKE_SELF, check_put)
op("index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
   _TARGET, _PUT)  # fmt: skip
op("_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) "
   "-> Tensor", _TARGET, _PUT)  # fmt: skip
op("_index_put_impl_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False, "
   "bool unsafe=False) -> Tensor(a!)", _TARGET)  # fmt: skip
op("put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor",
   checked(LIKE_SELF, _check_sizes),
   {"self": "grad if accumulate else put(grad, index, new_zeros(grad, index.shape))",
    "source": "reshape(take(grad, index), source.shape)"})  # fmt: skip


# ---- along one dimension

_PLACES = like(
    "self",
    expects="an index as long as the tensor and the source or shorter, in every dimension but "
    "`dim` of the tensor, from 0 to the size of `dim` less 1",
)
_WITH = checked(_PLACES, check_scatter(("add", "multiply"), "'add' and 'multiply'"))
_REDUCED = checked(
    _PLACES,
    check_scatter(("sum", "prod", "mean", "amax", "amin"), "sum, prod, mean, amax and amin"),
)
_PLACES = checked(_PLACES, check_scatter())
_SOURCE = "pad_to_shape(gather(grad, dim, index), src.shape)"
op("scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", _PLACES,
   {"self": "scatter(grad, dim, index, 0)", "src": _SOURCE})  # fmt: skip
op("scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", _PLACES,
   {"self": "scatter(grad, dim, index, 0)"})  # fmt: skip
op("scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
   _WITH, {"self, src": "scatter_reduce_backward("
                        "grad, self, dim, index, src, reduce, True, result)"})  # fmt: skip
op("scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) "
   "-> Tensor", _WITH,
   {"self": "scatter_reduce_backward(grad, self, dim, index, "
            "new_full(grad, index.shape, value), reduce, True, result)[0]"})  # fmt: skip
op("scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", _PLACES,
   {"self": "grad", "src": _SOURCE})  # fmt: skip
op("scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, "
   "bool include_self=True) -> Tensor", _REDUCED,
   {"self, src": "scatter_reduce_backward("
                 "grad, self, dim, index, src, reduce, include_self, result)"})  # fmt: skip
op("index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
   checked(LIKE_SELF, check_rows),
   {"self": "grad",
    "source": "reshape(index_select(grad, dim, index), source.shape) * conj(alpha)"})  # fmt: skip


@composite("index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, "
           "bool include_self=True) -> Tensor")  # fmt: skip
def _index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    check_reduction(reduce, ("prod", "mean", "amax", "amin"), "prod, mean, amax and amin")
    check_flat(self, dim, index)
    if source.ndim:
        dim = normalize_dim(dim, source.ndim)
        count, rows = math.prod(index.shape), source.shape[dim]
        if count != rows:
            raise ValueError(f"{count} indices for {rows} rows of the source")
        sizes = [-1 if d == dim else 1 for d in range(source.ndim)]
        index = F.expand(F.reshape(index, sizes), list(source.shape))
    else:
        index = F.reshape(index, [])
    return F.scatter_reduce(self, dim, index, source, reduce, include_self=include_self)
