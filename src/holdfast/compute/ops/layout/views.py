"""Views: view, expand, permute, slice, diagonal …, their `_copy` and `_scatter` forms, backward
ops.

A view shares memory with its first argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layout import shapes
from holdfast.compute.ops.rules import LIKE_SELF, Meta, Rule, reshaped, rule, sized
from holdfast.compute.ops.table import Op, op

_END = "9223372036854775807"
_BACK = {"self": "reshape(grad, self.shape)"}


def _many(function: Callable[..., list[tuple[int, ...]]], *names: str) -> Rule:
    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
        of = bound["self"]
        found = function(tuple(of.shape), *(bound[n] for n in names))
        return tuple(Meta(shape, of.dtype) for shape in found)

    return rule(infer)


def _view(signature: str, how: Rule, gradient: dict[str, str], copy: bool = True) -> None:
    """Add a view and its copying form: `view` and `view_copy`."""
    op(signature, how, gradient)
    if copy:
        head, _, tail = signature.partition("(")
        base, dot, overload = head.partition(".")
        tail = tail.replace("Tensor(a -> *)", "Tensor").replace("Tensor(a)", "Tensor")
        op(f"{base}_copy{dot}{overload}({tail}", how, gradient)


_SIZED = sized("input_sizes", "grad_output")

_view("alias(Tensor(a) self) -> Tensor(a)", LIKE_SELF, {"self": "grad"})
op("detach(Tensor(a) self) -> Tensor(a)", LIKE_SELF)
op("detach_copy(Tensor self) -> Tensor", LIKE_SELF)
op("lift_fresh(Tensor(a) self) -> Tensor(a)", LIKE_SELF, {"self": "grad"})
op("lift(Tensor self) -> Tensor", LIKE_SELF, {"self": "grad"})
op("lift_fresh_copy(Tensor self) -> Tensor", LIKE_SELF, {"self": "grad"})

# ---- reshape

_view("view(Tensor(a) self, int[] size) -> Tensor(a)", reshaped(shapes.view, "size"), _BACK)
op("_unsafe_view(Tensor self, int[] size) -> Tensor", reshaped(shapes.view, "size"), _BACK)
op("_reshape_alias(Tensor(a) self, int[] size, int[] stride) -> Tensor(a)",
   reshaped(shapes.view, "size"), _BACK)  # fmt: skip
op("_reshape_copy(Tensor self, int[] size) -> Tensor", reshaped(shapes.view, "size"), _BACK)
_view("squeeze(Tensor(a) self) -> Tensor(a)", reshaped(shapes.squeeze), _BACK)
_view("squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", reshaped(shapes.squeeze, "dim"), _BACK)
_view("squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)", reshaped(shapes.squeeze, "dim"),
      _BACK)  # fmt: skip
_view("unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", reshaped(shapes.unsqueeze, "dim"), _BACK)
_view("expand(Tensor(a) self, int[] size, *, bool implicit=False) -> Tensor(a)",
      reshaped(shapes.expand, "size"), {"self": "grad"})  # fmt: skip

# ---- permute

_view("permute(Tensor(a) self, int[] dims) -> Tensor(a)", reshaped(shapes.permute, "dims"),
      {"self": "permute(grad, inverse_order(dims))"})  # fmt: skip
_view("transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
      reshaped(shapes.transpose, "dim0", "dim1"),
      {"self": "transpose(grad, dim0, dim1)"})  # fmt: skip
_view("t(Tensor(a) self) -> Tensor(a)", reshaped(shapes.transpose_matrix), {"self": "t(grad)"})

# ---- select and slice

_view("select.int(Tensor(a) self, int dim, int index) -> Tensor(a)",
      reshaped(shapes.select, "dim", "index"),
      {"self": "select_backward(grad, self.shape, dim, index)"})  # fmt: skip
_view("slice.Tensor(Tensor(a) self, int dim=0, int? start=None, int? end=None, int step=1)"
      " -> Tensor(a)", reshaped(shapes.slice_dim, "dim", "start", "end", "step"),
      {"self": "slice_backward(grad, self.shape, dim, start or 0, "
               f"{_END} if end is None else end, step)"})  # fmt: skip
op("narrow_copy(Tensor self, int dim, int start, int length) -> Tensor",
   reshaped(shapes.narrow, "dim", "start", "length"),
   {"self": "slice_backward(grad, self.shape, dim, start % (self.shape[dim] or 1), "
            "start % (self.shape[dim] or 1) + length, 1)"})  # fmt: skip
_view("diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
      reshaped(shapes.diagonal, "offset", "dim1", "dim2"),
      {"self": "diagonal_backward(grad, self.shape, offset, dim1, dim2)"})  # fmt: skip
_view("unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)",
      reshaped(shapes.unfold, "dimension", "size", "step"),
      {"self": "unfold_backward(grad, self.shape, dimension, size, step)"})  # fmt: skip
_view("as_strided(Tensor(a) self, int[] size, int[] stride, int? storage_offset=None) -> Tensor(a)",
      reshaped(lambda _, size: tuple(size), "size"),
      {"self": "as_strided_backward(grad, self.shape, self.layout, size, stride, "
               "storage_offset)"})  # fmt: skip

# ---- split

_view("split.Tensor(Tensor(a -> *) self, int split_size, int dim=0) -> Tensor(a)[]",
      _many(shapes.split, "split_size", "dim"), {"self": "cat(grads, dim)"})  # fmt: skip
op("split.sizes(Tensor(a -> *) self, int[] split_size, int dim=0) -> Tensor(a)[]",
   decomposition=lambda self, split_size, dim=0:
   F.split_with_sizes(self, split_size, dim))  # fmt: skip
_view("split_with_sizes(Tensor(a -> *) self, int[] split_sizes, int dim=0) -> Tensor(a)[]",
      _many(shapes.split_with_sizes, "split_sizes", "dim"),
      {"self": "cat(grads, dim)"})  # fmt: skip
op("unsafe_split.Tensor(Tensor self, int split_size, int dim=0) -> Tensor[]",
   _many(shapes.split, "split_size", "dim"), {"self": "cat(grads, dim)"})  # fmt: skip
op("unsafe_split_with_sizes(Tensor self, int[] split_sizes, int dim=0) -> Tensor[]",
   _many(shapes.split_with_sizes, "split_sizes", "dim"), {"self": "cat(grads, dim)"})  # fmt: skip
_view("unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", _many(shapes.unbind, "dim"),
      {"self": "stack(grads, dim)"})  # fmt: skip

# ---- complex parts, reinterpreted bytes


def _infer_as_bytes(op: Op, bound: dict[str, Any]) -> Meta:
    of, kind = bound["self"], dtypes.dtype(bound["dtype"])
    return Meta(shapes.reinterpret(tuple(of.shape), of.dtype.itemsize, kind.itemsize), kind)


_view("view_as_real(Tensor(a) self) -> Tensor(a)",
      rule(lambda _, b: Meta((*b["self"].shape, 2), dtypes.real_of(b["self"].dtype))),
      {"self": "view_as_complex(contiguous(grad))"})  # fmt: skip
_view("view_as_complex(Tensor(a) self) -> Tensor(a)",
      rule(lambda _, b: Meta(tuple(b["self"].shape[:-1]), dtypes.complex_of(b["self"].dtype))),
      {"self": "view_as_real(grad)"})  # fmt: skip
_view("view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)", rule(_infer_as_bytes), {})

# ---- backward of select and slice: zero elsewhere

op("select_backward(Tensor grad_output, int[] input_sizes, int dim, int index) -> Tensor", _SIZED,
   {"grad_output": "select(grad, dim, index)"})  # fmt: skip
op("slice_backward(Tensor grad_output, int[] input_sizes, int dim, int start, int end, int step)"
   " -> Tensor", _SIZED, {"grad_output": "slice(grad, dim, start, end, step)"})  # fmt: skip
op("diagonal_backward(Tensor grad_output, int[] input_sizes, int offset, int dim1, int dim2)"
   " -> Tensor", _SIZED, {"grad_output": "diagonal(grad, offset, dim1, dim2)"})  # fmt: skip
op("unfold_backward(Tensor grad_in, int[] input_sizes, int dim, int size, int step) -> Tensor",
   sized("input_sizes", "grad_in"), {"grad_in": "unfold(grad, dim, size, step)"})  # fmt: skip

# ---- scatter: a copy with a part replaced

op("select_scatter(Tensor self, Tensor src, int dim, int index) -> Tensor", LIKE_SELF,
   {"self": "select_scatter(grad, zeros_like(select(grad, dim, index)), dim, index)",
    "src": "select(grad, dim, index)"})  # fmt: skip
op("slice_scatter(Tensor self, Tensor src, int dim=0, int? start=None, int? end=None, int step=1)"
   " -> Tensor", LIKE_SELF,
   {"self": "slice_scatter(grad, zeros_like(slice(grad, dim, start, end, step)), dim, start, end, "
            "step)",
    "src": "slice(grad, dim, start, end, step)"})  # fmt: skip
op("diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
   LIKE_SELF,
   {"self": "diagonal_scatter(grad, zeros_like(diagonal(grad, offset, dim1, dim2)), offset, dim1, "
            "dim2)",
    "src": "diagonal(grad, offset, dim1, dim2)"})  # fmt: skip
op("as_strided_scatter(Tensor self, Tensor src, int[] size, int[] stride, int? storage_offset=None)"
   " -> Tensor", LIKE_SELF,
   {"self": "as_strided_scatter(grad, new_zeros(grad, size), size, stride, storage_offset)",
    "src": "contiguous(as_strided(contiguous(grad), size, stride, storage_offset))"})  # fmt: skip

# ---- metadata

op("sym_size.int(Tensor self, int dim) -> int")
op("sym_stride.int(Tensor self, int dim) -> int")
op("sym_numel(Tensor self) -> int")
op("sym_storage_offset(Tensor self) -> int")
op("sym_is_contiguous(Tensor self) -> SymBool")
op("_local_scalar_dense(Tensor self) -> Scalar")
