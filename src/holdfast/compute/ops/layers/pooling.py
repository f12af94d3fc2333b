"""Max and average pooling over 1, 2 and 3 spatial dimensions, and backward ops.

Indices are int64 positions in the flattened spatial dimensions.
"""

from __future__ import annotations

from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.ops.layers import windows
from holdfast.compute.ops.rules import Infer, Meta, like, rule
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


_SELF = like("self")
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
       " bool ceil_mode, Tensor indices) -> Tensor", _SELF,
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
    op(f"{largest}_backward(Tensor grad_output, Tensor self, Tensor indices) -> Tensor", _SELF,
       {"grad_output": f"take_flat(grad, indices, {count})"})  # fmt: skip


for _count in (2, 3):
    _regular(_count)
    _adaptive(_count)


# ---- fractional pooling, max_unpool


def _infer_fractional(op: Op, bound: dict[str, Any]) -> Any:
    count = int(op.schema.base.removesuffix("d")[-1])
    sizes = windows.per_dim(bound["output_size"], count, "output_size")
    return _metas(bound["self"], sizes, True)


def _infer_unpool(op: Op, bound: dict[str, Any]) -> Meta:
    of = bound["self"]
    return Meta((*of.shape[: -len(bound["output_size"])], *bound["output_size"]), of.dtype)


for _count in (2, 3):
    _name = f"fractional_max_pool{_count}d"
    _sizes = f"int[{_count}] kernel_size, int[{_count}] output_size"
    op(f"{_name}(Tensor self, {_sizes}, Tensor random_samples) -> (Tensor, Tensor)",
       rule(_infer_fractional),
       {"self": f"{_name}_backward(grad, {_SIZES}, kernel_size, output_size,"
                " result1)"})  # fmt: skip
    op(f"{_name}_backward(Tensor grad_output, Tensor self, {_sizes}, Tensor indices) -> Tensor",
       _SELF, {"grad_output": f"take_flat(grad, indices, {_count})"})  # fmt: skip

op("max_unpool2d(Tensor self, Tensor indices, int[2] output_size) -> Tensor", rule(_infer_unpool),
   {"self": "take_flat(grad, indices, 2)"})  # fmt: skip
op("max_unpool3d(Tensor self, Tensor indices, int[3] output_size, int[3] stride, int[3] padding)"
   " -> Tensor", rule(_infer_unpool), {"self": "take_flat(grad, indices, 3)"})  # fmt: skip


# ---- composites


def _flat(value: Any, none: int) -> list[int]:
    """A 1-d size as a 2-d size, with `none` for the first dimension."""
    listed = windows.per_dim(value, 1, "a size of one dimension")
    return [none, *listed]


def _row(self: Any) -> Any:
    if self.ndim not in (2, 3):
        raise BadInput(
            f"cannot pool {self.dtype}{list(self.shape)} over one dimension",
            expected="2 dimensions, channels and space, or a batch of those",
        )
    return F.unsqueeze(self, -2)


@composite(
    "max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[],"
    " int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> (Tensor, Tensor)"
)
def _max_pool1d_with_indices(
    self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    step = kernel_size if windows.missing(stride) else stride
    window = _flat(kernel_size, 1), _flat(step, 1), _flat(padding, 0), _flat(dilation, 1)
    found = F.max_pool2d_with_indices(_row(self), *window, ceil_mode)
    return tuple(F.squeeze(one, -2) for one in found)


@composite(
    "max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0],"
    " int[1] dilation=[1], bool ceil_mode=False) -> Tensor"
)
def _max_pool1d(self: Any, *args: Any, **named: Any) -> Any:
    return _max_pool1d_with_indices(self, *args, **named)[0]


def _values_only(count: int) -> Any:
    def pool(self: Any, *args: Any, **named: Any) -> Any:
        return F.packet(f"max_pool{count}d_with_indices")(self, *args, **named)[0]

    return pool


for _count in (2, 3):
    composite(
        f"max_pool{_count}d(Tensor self, int[{_count}] kernel_size, int[{_count}] stride=[],"
        f" int[{_count}] padding=0, int[{_count}] dilation=1, bool ceil_mode=False) -> Tensor"
    )(_values_only(_count))


@composite(
    "avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0],"
    " bool ceil_mode=False, bool count_include_pad=True) -> Tensor"
)
def _avg_pool1d(
    self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    step = kernel_size if windows.missing(stride) else stride
    window = _flat(kernel_size, 1), _flat(step, 1), _flat(padding, 0)
    return F.squeeze(F.avg_pool2d(_row(self), *window, ceil_mode, count_include_pad), -2)


@composite("adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor")
def _adaptive_avg_pool1d(self: Any, output_size: Any) -> Any:
    return F.squeeze(F._adaptive_avg_pool2d(_row(self), _flat(output_size, 1)), -2)


@composite("adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)")
def _adaptive_max_pool1d(self: Any, output_size: Any) -> Any:
    found = F.adaptive_max_pool2d(_row(self), _flat(output_size, 1))
    return tuple(F.squeeze(one, -2) for one in found)
