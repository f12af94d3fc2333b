"""Writing at indices that may repeat: scatter and its reductions, index_put, index_add, put."""

from __future__ import annotations

from holdfast.compute.ops.rules import LIKE_SELF, like
from holdfast.compute.ops.table import op

# ---- lists of indices

_PUT = {
    "self": "grad if accumulate else index_put(grad, indices, new_zeros(grad, values.shape))",
    "values": "index(grad, indices)",
}
op("index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
   LIKE_SELF, _PUT)  # fmt: skip
op("_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) "
   "-> Tensor", LIKE_SELF, _PUT)  # fmt: skip
op("_index_put_impl_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False, "
   "bool unsafe=False) -> Tensor(a!)", LIKE_SELF)  # fmt: skip
op("put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor", LIKE_SELF,
   {"self": "grad if accumulate else put(grad, index, new_zeros(grad, index.shape))",
    "source": "reshape(take(grad, index), source.shape)"})  # fmt: skip


# ---- along one dimension

_PLACES = like(
    "self",
    expects="an index as long as the tensor and the source or shorter, in every dimension but "
    "`dim` of the tensor, from 0 to the size of `dim` less 1",
)
_SOURCE = "pad_to_shape(gather(grad, dim, index), src.shape)"
op("scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", _PLACES,
   {"self": "scatter(grad, dim, index, 0)", "src": _SOURCE})  # fmt: skip
op("scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", _PLACES,
   {"self": "scatter(grad, dim, index, 0)"})  # fmt: skip
op("scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
   _PLACES, {"self, src": "scatter_reduce_backward("
                          "grad, self, dim, index, src, reduce, True, result)"})  # fmt: skip
op("scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) "
   "-> Tensor", _PLACES,
   {"self": "scatter_reduce_backward(grad, self, dim, index, "
            "new_full(grad, index.shape, value), reduce, True, result)[0]"})  # fmt: skip
op("scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", _PLACES,
   {"self": "grad", "src": _SOURCE})  # fmt: skip
op("scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, "
   "bool include_self=True) -> Tensor", _PLACES,
   {"self, src": "scatter_reduce_backward("
                 "grad, self, dim, index, src, reduce, include_self, result)"})  # fmt: skip
op("index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
   LIKE_SELF,
   {"self": "grad",
    "source": "reshape(index_select(grad, dim, index), source.shape) * conj(alpha)"})  # fmt: skip
op("index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, "
   "bool include_self=True) -> Tensor", LIKE_SELF,
   {"self, source": "scatter_reduce_backward(grad, self, dim, "
                    "expand_index(index, source.shape, dim), source, reduce, include_self, "
                    "result)"})  # fmt: skip
