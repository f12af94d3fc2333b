"""Max and average pooling over 1, 2 and 3 spatial dimensions, and backward ops.

Indices are int64 positions in the flattened spatial dimensions.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.rules import Infer, Meta, checked, like, rule
from holdfast.compute.ops.table import Op, composite, op


def _infer_pool(count: int, indices: bool) -> Infer:
    def infer(op: Op, bound: dict[str, Any]) -> Any:
        shape = bound["self"].shape
        along = windows.windows(
            shape, count, bound["kernel_size"], bound["stride"], bound["padding"],
            bound.get("dilation", 1), bound["ceil_mode"],
        )  # fmt: skip
        return _metas(bound["self"], tuple(w.outputs for w in along), indices)

    return infer


def _infer_adaptive_pool(count: int, indices: bool) -> Infer:
    def infer(op: Op, bound: dict[str, Any]) -> Any:
        wanted = windows.adaptive(bound["self"].shape, count, bound["output_size"])
        return _metas(bound["self"], wanted, indices)

    return infer


def _metas(of: Any, sizes: tuple[int, ...], indices: bool) -> Any:
    shape = (*of.shape[: -len(sizes)], *sizes)
    made = Meta(shape, of.dtype)
    return (made, Meta(shape, dtypes.INT64)) if indices else made


def _check_gradient(grad_output: Any, self: Any, *rest: Any, **named: Any) -> None:
    indices = named["indices"] if "indices" in named else rest[-1]
    if grad_output.shape != indices.shape:
        raise ValueError(
            f"the gradient {list(grad_output.shape)} and the indices {list(indices.shape)} differ"
        )


_SELF = like("self")
_FROM_INDICES = checked(_SELF, _check_gradient)
_SIZES = "shape_only(grad, self.shape)"  # only the input's shape is needed


def _regular(count: int) -> None:
    """Windows of one size, over `count` dimensions."""
    sizes = f"int[{count}]"
    given = f"{sizes} kernel_size, {sizes} stride=[], {sizes} padding=0"
    back = f"{sizes} kernel_size, {sizes} stride, {sizes} padding"
    largest, average = f"max_pool{count}d_with_indices", f"avg_pool{count}d"
    op(f"{largest}(Tensor self, {given}, {sizes} dilation=1, bool ceil_mode=False)"
       " -> (Tensor, Tensor)", rule(_infer_pool(count, True)),
       {"self": f"{largest}_backward(grad, {_SIZES}, kernel_size, stride, padding, dilation,"
                " ceil_mode, result1)"})  # fmt: skip
    op(f"{largest}_backward(Tensor grad_output, Tensor self, {back}, {sizes} dilation,"
       " bool ceil_mode, Tensor indices) -> Tensor", _FROM_INDICES,
       {"grad_output": f"take_flat(grad, indices, {count})",
        "self": "zeros_like(self)"})  # fmt: skip
    rest = "kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override"
    op(f"{average}(Tensor self, {given}, bool ceil_mode=False, bool count_include_pad=True,"
       " int? divisor_override=None) -> Tensor", rule(_infer_pool(count, False)),
       {"self": f"{average}_backward(grad, {_SIZES}, {rest})"})  # fmt: skip
    op(f"{average}_backward(Tensor grad_output, Tensor self, {back}, bool ceil_mode,"
       " bool count_include_pad, int? divisor_override) -> Tensor", _SELF,
       {"grad_output": f"{average}(grad, {rest})"})  # fmt: skip


def _adaptive(count: int) -> None:
    """Windows that adapt to an output size, over `count` dimensions."""
    average, largest = f"_adaptive_avg_pool{count}d", f"adaptive_max_pool{count}d"
    op(f"{average}(Tensor self, int[{count}] output_size) -> Tensor",
       rule(_infer_adaptive_pool(count, False)),
       {"self": f"{average}_backward(grad, {_SIZES})"})  # fmt: skip
    op(f"{average}_backward(Tensor grad_output, Tensor self) -> Tensor", _SELF,
       {"grad_output": f"{average}(grad, grad_output.shape[-{count}:])"})  # fmt: skip
    op(f"{largest}(Tensor self, int[{count}] output_size) -> (Tensor, Tensor)",
       rule(_infer_adaptive_pool(count, True)),
       {"self": f"{largest}_backward(grad, {_SIZES}, result1)"})  # fmt: skip
    op(f"{largest}_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor",
       _FROM_INDICES, {"grad_output": f"take_flat(grad, indices, {count})"})  # fmt: skip


for _count in (2, 3):
    _regular(_count)
    _adaptive(_count)


# ---- fractional pooling, max_unpool


def _check_unpool(self: Any, indices: Any, *_: Any) -> None:
    if self.shape != indices.shape:
        raise ValueError(f"the indices are {list(indices.shape)}, the input {list(self.shape)}")


def _infer_output(op: Op, bound: dict[str, Any]) -> Any:
    count = int(op.schema.base.removesuffix("d")[-1])
    sizes = windows.per_dim(bound["output_size"], count, "output_size")
    return _metas(bound["self"], sizes, op.schema.returns == 2)


for _count in (2, 3):
    _name = f"fractional_max_pool{_count}d"
    _sizes = f"int[{_count}] kernel_size, int[{_count}] output_size"
    op(f"{_name}(Tensor self, {_sizes}, Tensor random_samples) -> (Tensor, Tensor)",
       rule(_infer_output),
       {"self": f"{_name}_backward(grad, {_SIZES}, kernel_size, output_size,"
                " result1)"})  # fmt: skip
    op(f"{_name}_backward(Tensor grad_output, Tensor self, {_sizes}, Tensor indices) -> Tensor",
       _FROM_INDICES, {"grad_output": f"take_flat(grad, indices, {_count})"})  # fmt: skip
    _rest = ", int[3] stride, int[3] padding" if _count == 3 else ""
    op(f"max_unpool{_count}d(Tensor self, Tensor indices, int[{_count}] output_size{_rest})"
       " -> Tensor", rule(_infer_output, check=_check_unpool),
       {"self": f"take_flat(grad, indices, {_count})"})  # fmt: skip


# ---- composites


# What a window along the added dimension has.
_ALONE = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_size": 1}


def _pool_rows(text: str, name: str) -> None:
    """An op over one dimension, as a row, by the op `name` over two."""

    def pool(*args: Any, **named: Any) -> Any:
        bound = made.schema.bind(args, named)
        of = bound.pop("self")
        if of.ndim not in (2, 3):
            raise BadInput(
                f"cannot pool {of.dtype}{list(of.shape)} over one dimension",
                expected="2 dimensions, channels and space, or a batch of those",
            )
        if "stride" in bound and windows.missing(bound["stride"]):
            bound["stride"] = bound["kernel_size"]
        sizes = (
            [_ALONE[key], *windows.per_dim(value, 1, "a size of one dimension")]
            if key in _ALONE
            else value
            for key, value in bound.items()
        )
        found = F.packet(name)(F.unsqueeze(of, -2), *sizes)
        if isinstance(found, tuple):
            return tuple(F.squeeze(one, -2) for one in found)
        return F.squeeze(found, -2)

    made = op(text, decomposition=pool)


_WINDOW = "Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0]"
_pool_rows(f"max_pool1d_with_indices({_WINDOW}, int[1] dilation=[1], bool ceil_mode=False)"
           " -> (Tensor, Tensor)", "max_pool2d_with_indices")  # fmt: skip
_pool_rows(f"avg_pool1d({_WINDOW}, bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
           "avg_pool2d")  # fmt: skip
_pool_rows("adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor",
           "_adaptive_avg_pool2d")  # fmt: skip
_pool_rows("adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)",
           "adaptive_max_pool2d")  # fmt: skip


def _values_only(count: int) -> Any:
    def pool(self: Any, *args: Any, **named: Any) -> Any:
        return F.packet(f"max_pool{count}d_with_indices")(self, *args, **named)[0]

    return pool


for _count, _zero, _one in ((1, "[0]", "[1]"), (2, "0", "1"), (3, "0", "1")):
    composite(
        f"max_pool{_count}d(Tensor self, int[{_count}] kernel_size, int[{_count}] stride=[],"
        f" int[{_count}] padding={_zero}, int[{_count}] dilation={_one}, bool ceil_mode=False)"
        " -> Tensor"
    )(_values_only(_count))
