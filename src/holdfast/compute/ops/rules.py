"""Rules: the shape and dtype of a result without computing it, and type promotion.

Rules read shapes and dtypes, never elements. An engine that allocates results before it computes
calls `infer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes

Op = Any  # `table.Op`, whose module imports this one


class Meta(NamedTuple):
    """Shape and dtype of an array that need not exist."""

    shape: tuple[int, ...]
    dtype: numpy.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def meta_of(value: Any) -> Meta:
    """The shape and dtype of a tensor, an array or a Meta."""
    return Meta(tuple(value.shape), value.dtype)


Infer = Callable[[Op, dict[str, Any]], Meta | tuple[Meta, ...] | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op's result follows from its arguments.

    `kind` gives the dtype that a pointwise op computes in and returns; None: no promotion.
    `among` are the arguments that are promoted. `infer` takes arguments by name (arrays or
    Metas) and returns Metas, or None if only the kernel knows. `expects` is for error messages.
    `check` takes the arguments as a kernel does and raises for those that no engine can compute.
    """

    infer: Infer | None = None
    kind: str | None = None
    among: tuple[str, ...] | None = None
    widen: bool = True
    expects: str | None = None
    check: Callable[..., None] | None = None


def checked(rule: Rule, check: Callable[..., None]) -> Rule:
    """A rule whose arguments are checked before an engine computes."""
    return replace(rule, check=check)


# ---- pointwise

_SCALARS = ("other", "exponent", "min", "max")
_FLOAT = ("float", "float_real")


def find_promotion(op: Op, bound: dict[str, Any]) -> tuple[tuple[str, ...], numpy.dtype[Any]]:
    """The arguments of a pointwise op that are promoted, and their common dtype."""
    among = op.rule.among or tuple(
        p.name
        for p in op.schema.parameters
        if not p.many and (p.tensor or (p.type == "Scalar" and p.name in _SCALARS))
    )
    found = dtypes.result_type(*(bound[name] for name in among))
    return among, dtypes.with_fractions(found) if op.rule.kind in _FLOAT else found


def result_dtype(kind: str | None, computed: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The result dtype of a pointwise op that computes in `computed`."""
    if kind == "bool":
        return dtypes.BOOL
    if kind in ("real", "float_real"):
        return dtypes.real_of(computed)
    return computed


def _broadcast(op: Op, bound: dict[str, Any]) -> Meta:
    _, kind = find_promotion(op, bound)
    tensors = [p.name for p in op.schema.parameters if p.tensor and not p.many]
    shapes = [bound[n].shape for n in tensors if hasattr(bound[n], "shape")]
    return Meta(numpy.broadcast_shapes(*shapes), result_dtype(op.rule.kind, kind))


_BROADCAST = "shapes that broadcast: from the right, sizes are equal or one of them is 1"


def pointwise(kind: str = "same", among: Sequence[str] | None = None) -> Rule:
    """Element by element over broadcast arguments.

    kind: "same" (the promoted dtype), "float" (integers become float32), "bool" (returns
    booleans), "real" (complex arguments return real), "float_real" (both).
    """
    return Rule(_broadcast, kind, tuple(among) if among else None, True, _BROADCAST)


POINTWISE = pointwise()
POINTWISE_FLOAT = pointwise("float")
POINTWISE_BOOL = pointwise("bool")
POINTWISE_REAL = pointwise("real")


# ---- everything else


def like(*names: str, count: int = 1, expects: str | None = None) -> Rule:
    """Results with the shapes and dtypes of these arguments, in turn; the last one repeats."""

    def infer(op: Op, bound: dict[str, Any]) -> Meta | tuple[Meta, ...] | None:
        found = [bound[name] for name in names]
        if any(not hasattr(one, "shape") for one in found):
            return None
        metas = [meta_of(one) for one in found]
        metas += metas[-1:] * (count - len(metas))
        return metas[0] if len(metas) == 1 else tuple(metas)

    return Rule(infer, expects=expects)


def rule(
    infer: Infer | None = None, expects: str | None = None, check: Callable[..., None] | None = None
) -> Rule:
    """A rule with its own `infer`."""
    return Rule(infer, expects=expects, check=check)


def sized(name: str, of: str) -> Rule:
    """The shape listed by the argument `name`, in the dtype of the tensor `of`."""
    return Rule(lambda op, bound: Meta(tuple(bound[name]), bound[of].dtype))


def reshaped(
    function: Callable[..., tuple[int, ...]], *names: str, expects: str | None = None
) -> Rule:
    """The dtype of `self`, and the shape from `function(shape, *arguments)`."""

    def infer(op: Op, bound: dict[str, Any]) -> Meta:
        of = bound["self"]
        return Meta(function(tuple(of.shape), *(bound[n] for n in names)), of.dtype)

    return Rule(infer, expects=expects)


def gradients(*names: str) -> Rule:
    """Gradients for these arguments; unknown if `output_mask` leaves some out."""

    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...] | None:
        found = [bound[name] for name in names]
        if not all(bound["output_mask"]) or any(one is None for one in found):
            return None
        return tuple(meta_of(one) for one in found)

    return Rule(infer)


def with_indices(values: Rule, expects: str | None = None) -> Rule:
    """The values of another rule, and int64 indices of the same shape."""

    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
        found: Any = values.infer and values.infer(op, bound)
        return found, Meta(found.shape, dtypes.INT64)

    return Rule(infer, expects=expects)


LIKE_SELF = like("self")
COMPUTED = Rule()


def normalize_dims(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from 0; None or an empty list means all.

    Raises IndexError for a dimension out of range.
    """
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(ndim))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(normalize_dim(d, ndim) for d in listed)


def normalize_dim(dim: int, ndim: int) -> int:
    """A dimension counted from 0. As in torch, a 0-d tensor accepts 0 and -1."""
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise IndexError(f"dimension {dim} is not there: {ndim} dimensions, {-span} to {span - 1}")
    return dim % span


def reduction(kind: str = "same") -> Rule:
    """Over `dim` (all if missing); kept with size 1 if `keepdim`.

    kind: "same", "sum" (integers become int64), "real" (of complex arguments), "index" (int64).
    """

    def infer(op: Op, bound: dict[str, Any]) -> Meta:
        of = bound["self"]
        dims = set(normalize_dims(bound.get("dim"), len(of.shape)))
        keep = bound.get("keepdim", False)
        shape = tuple(
            1 if d in dims else size for d, size in enumerate(of.shape) if keep or d not in dims
        )
        return Meta(shape, _find_reduced_dtype(kind, of.dtype, bound.get("dtype")))

    return Rule(infer)


def _find_reduced_dtype(kind: str, of: numpy.dtype[Any], dtype: Any) -> numpy.dtype[Any]:
    if kind == "real":
        return dtypes.real_of(dtypes.dtype_or(dtype, of))
    if kind == "index":
        return dtypes.INT64
    return dtypes.dtype_or(dtype, dtypes.of_sums(of) if kind == "sum" else of)
