"""Padding: constant, reflection, replication, circular. Negative padding crops.

As in torch, padding lists two integers for each dimension, starting with the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.ops.rules import checked, like, reshaped
from holdfast.compute.ops.table import composite, op


def sides(pad: Sequence[int], ndim: int) -> list[tuple[int, int]]:
    """(before, after) for every dimension in order. Raises ValueError."""
    if len(pad) % 2:
        raise ValueError(f"padding has {len(pad)} elements, it takes two for each dimension")
    if len(pad) > 2 * ndim:
        raise ValueError(f"padding has {len(pad)} elements, the input has {ndim} dimensions only")
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


def padded_shape(shape: Sequence[int], pad: Sequence[int]) -> tuple[int, ...]:
    """The shape after padding. Raises ValueError for a negative size."""
    pairs = sides(pad, len(shape))
    sizes = tuple(size + sum(pair) for size, pair in zip(shape, pairs, strict=True))
    if any(size < 0 for size in sizes):
        raise ValueError(f"padding {list(pad)} of {list(shape)} leaves sizes {list(sizes)}")
    return sizes


def _check_backward(grad_output: Any, self: Any, padding: Sequence[int]) -> None:
    wanted = padded_shape(self.shape, padding)
    if grad_output.shape != wanted:
        raise ValueError(
            f"the gradient {list(grad_output.shape)} is not of the padded shape {list(wanted)}"
        )


op("constant_pad_nd(Tensor self, int[] pad, Scalar value=0) -> Tensor",
   reshaped(padded_shape, "pad"),
   {"self": "constant_pad_nd(grad, [-p for p in pad], 0)"})  # fmt: skip

for _kind in ("reflection", "replication"):
    for _dims in (1, 2, 3):
        _name, _many = f"{_kind}_pad{_dims}d", 2 * _dims
        op(f"{_name}(Tensor self, int[{_many}] padding) -> Tensor",
           reshaped(padded_shape, "padding"),
           {"self": f"{_name}_backward(grad, shape_only(grad, self.shape), padding)"})  # fmt: skip
        op(f"{_name}_backward(Tensor grad_output, Tensor self, int[{_many}] padding) -> Tensor",
           checked(like("self"), _check_backward),
           {"grad_output": f"{_name}(grad, padding)"})  # fmt: skip


# ---- composites

_MODES = {"reflect": "reflection", "replicate": "replication"}


@composite('pad(Tensor self, int[] pad, str mode="constant", float? value=None) -> Tensor')
def _pad(self: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    if len(pad) % 2 or len(pad) > 2 * self.ndim:
        raise BadInput(
            f"cannot pad {self.dtype}{list(self.shape)} by {list(pad)}",
            expected="two integers for each padded dimension",
        )
    if mode == "constant":
        fill = 0 if value is None else value
        return F.constant_pad_nd(self, pad, fill)
    if value is not None and value != 0:
        raise BadInput(f"cannot pad by {mode!r} with the value {value}", expected="no value")
    if mode == "circular":
        return F._pad_circular(self, pad)
    dims = len(pad) // 2
    if mode not in _MODES or dims not in (1, 2, 3):
        raise BadInput(
            f"cannot pad {dims} dimensions by {mode!r}",
            expected="constant, circular, or, for 1 to 3 dimensions, reflect, replicate",
        )
    return F.packet(f"{_MODES[mode]}_pad{dims}d")(self, pad)


@composite("_pad_circular(Tensor self, int[] pad) -> Tensor")
def _pad_circular(self: Any, pad: Sequence[int]) -> Any:
    cut, joined = F.slice, F.cat
    out = self
    for dim, (before, after) in enumerate(sides(pad, self.ndim)):
        size = out.shape[dim]
        if max(before, after) > size:
            raise BadInput(
                f"cannot pad {self.dtype}{list(self.shape)} by {list(pad)}: that goes round "
                f"dimension {dim} more than once",
                expected=f"at most {size} at each end",
            )
        if min(before, after) < 0:
            out = cut(out, dim, max(0, -before), size + min(0, after))
            size = out.shape[dim]
        head = [cut(out, dim, size - before, size)] if before > 0 else []
        tail = [cut(out, dim, 0, after)] if after > 0 else []
        out = joined([*head, out, *tail], dim) if head or tail else out
    return out if max(pad, default=0) > 0 else F.clone(out)
