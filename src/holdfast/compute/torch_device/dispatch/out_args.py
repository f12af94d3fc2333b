"""Which tensors an out= form may write into: the same ones that torch accepts.

Checked before anything is written.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.dispatch import resolve
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import tensor_bridge

SAME, CASTABLE, ANY = "same", "castable", "any"

# Pointwise ops take a target that the result can be cast to; these need the same dtype.
_SAME = frozenset(
    (
        *("abs", "bitwise_not", "ceil", "floor", "frac", "gelu", "hardshrink", "heaviside"),
        *("isneginf", "isposinf", "neg", "round", "sgn", "sign", "signbit", "softplus"),
        *("softshrink", "trunc", "where"),
    )
)
# All others need the same dtype, but for these.
_CASTABLE = frozenset(
    (
        *("addr.out", "cat.out", "cholesky.out", "cholesky_inverse.out", "div.out_mode", "geqrf.a"),
        *("linalg_eig.out", "linalg_householder_product.out", "linalg_lstsq.out", "max.unary_out"),
        *("mean.out", "min.unary_out", "mvlgamma.out", "std.correction_out", "var.correction_out"),
    )
)
_ANY = frozenset(("bernoulli", "cumprod", "cumsum", "nansum", "norm", "normal", "prod", "sum"))
_ANY_ENDINGS = ("_backward", "_entropy", "_forward", "_loss")


def demand(overload: Any, op: Op) -> str:
    """What an out= overload requires of the dtype of its target: SAME, CASTABLE or ANY."""
    base = overload._schema.name.removeprefix("aten::")
    if op.rule.kind is not None:
        return SAME if base in _SAME else CASTABLE
    if base in _ANY or base.startswith("_fft") or base.endswith(_ANY_ENDINGS):
        return ANY
    return CASTABLE if resolve.name_of(overload) in _CASTABLE else SAME


def check_dtype(op: Op, asked: str, args: Any, target: torch.Tensor, kind: Any) -> None:
    """Raises Refused where the target of an out= form cannot take a result of dtype `kind`."""
    held = tensor_bridge.numpy_dtype(target.dtype)
    if op.name == "abs" and args[0].is_complex():  # torch is strict with real tensors alone
        asked = CASTABLE
    if asked == ANY or held == kind:
        return
    higher = dtypes.category(kind) > dtypes.category(held)
    truth = op.schema.base in ("all", "any") and target.dtype is torch.uint8
    if (asked == CASTABLE and not higher) or truth:
        return
    names = [str(tensor_bridge.TO_TORCH[one]).removeprefix("torch.") for one in (kind, held)]
    raise Refused(
        f"cannot compute {op.name} into a tensor: result type {names[0]} can't be cast to the "
        f"desired output type {names[1]}",
        expected="a tensor whose dtype holds the result"
        if asked == CASTABLE
        else f"a tensor of format {names[0]}",
    )


def check_shape(op: Op, target: torch.Tensor, args: Any, shape: tuple[int, ...]) -> None:
    """Raises Refused for a pointwise op whose target is an argument and would have to grow."""
    if tuple(target.shape) == shape or not any(one is target for one in args):
        return
    raise Refused(
        f"cannot compute {op.name} in place: output with shape {list(target.shape)} doesn't match "
        f"the broadcast shape {list(shape)}",
        expected="a tensor of the result's shape",
    )
