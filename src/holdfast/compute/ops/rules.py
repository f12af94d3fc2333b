"""Rules: what shape and format a result has, and what a kernel is given.

Covers: promotion before a kernel runs, the result's metadata without computing it.
Leaves to others: the computing.  Promise: rules read shapes and formats, never numbers.

An engine that must have a place for a result before it computes asks `infer`; every engine's
kernels get arguments that `prepare` has brought to one format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats

if TYPE_CHECKING:
    from holdfast.compute.ops.table import Op


class Meta(NamedTuple):
    """Shape and format of an array that need not exist."""

    shape: tuple[int, ...]
    dtype: numpy.dtype[Any]

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)


def meta_of(value: Any) -> Meta:
    """Shape and format of a tensor, an array or a Meta."""
    return Meta(tuple(value.shape), value.dtype)


Infer = Callable[["Op", dict[str, Any]], Meta | tuple[Meta, ...] | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op's result follows from its arguments.

    `kind` says which format a pointwise op computes and answers in; None leaves arguments alone.
    `among` are the arguments that are promoted. `infer` gets arguments by name (arrays or Metas)
    and returns Metas, or None where only the kernel knows. `expects` is for the error.
    """

    infer: Infer | None = None
    kind: str | None = None
    among: tuple[str, ...] | None = None
    widen: bool = True
    expects: str | None = None


# ---- pointwise

_SCALARS = ("other", "exponent", "min", "max")
_FLOAT = ("float", "float_real")


def promoted(op: Op, bound: dict[str, Any]) -> tuple[tuple[str, ...], numpy.dtype[Any]]:
    """Which arguments of a pointwise op meet in one format, and which format that is."""
    among = op.rule.among or tuple(
        p.name
        for p in op.schema.parameters
        if not p.many and (p.tensor or (p.type == "Scalar" and p.name in _SCALARS))
    )
    found = formats.result_type(*(bound[name] for name in among))
    return among, formats.with_fractions(found) if op.rule.kind in _FLOAT else found


def result_format(kind: str | None, computed: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The format of the result of a pointwise op that computes in `computed`."""
    if kind == "bool":
        return formats.BOOL
    if kind in ("real", "float_real"):
        return formats.real_of(computed)
    return computed


def _broadcast(op: Op, bound: dict[str, Any]) -> Meta:
    _, kind = promoted(op, bound)
    tensors = [p.name for p in op.schema.parameters if p.tensor and not p.many]
    shapes = [bound[n].shape for n in tensors if hasattr(bound[n], "shape")]
    return Meta(numpy.broadcast_shapes(*shapes), result_format(op.rule.kind, kind))


_BROADCAST = "shapes that broadcast: from the right, sizes are equal or one of them is 1"


def pointwise(kind: str = "same", among: Sequence[str] | None = None) -> Rule:
    """Element by element over broadcast arguments.

    kind: "same" (the promoted format), "float" (integers become float32), "bool" (answers truth
    values), "real" (complex numbers answer in their parts' format), "float_real" (both).
    """
    return Rule(_broadcast, kind, tuple(among) if among else None, True, _BROADCAST)


POINTWISE = pointwise()
POINTWISE_FLOAT = pointwise("float")
POINTWISE_BOOL = pointwise("bool")
POINTWISE_REAL = pointwise("real")


# ---- everything else


def like(*names: str, count: int = 1, expects: str | None = None) -> Rule:
    """Results that have the shapes and formats of these arguments, in turn (last one repeats)."""

    def infer(op: Op, bound: dict[str, Any]) -> Meta | tuple[Meta, ...] | None:
        found = [bound[name] for name in names]
        if any(not hasattr(one, "shape") for one in found):
            return None
        metas = [meta_of(one) for one in found]
        metas += metas[-1:] * (count - len(metas))
        return metas[0] if len(metas) == 1 else tuple(metas)

    return Rule(infer, expects=expects)


def rule(infer: Infer | None = None, expects: str | None = None) -> Rule:
    """A rule of an op's own."""
    return Rule(infer, expects=expects)


def sized(name: str, of: str) -> Rule:
    """The sizes that the argument `name` lists, in the format of the tensor `of`."""
    return Rule(lambda op, bound: Meta(tuple(bound[name]), bound[of].dtype))


def gradients(*names: str) -> Rule:
    """Gradients for these arguments, or fewer where `output_mask` wants fewer: then unknown."""

    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...] | None:
        found = [bound[name] for name in names]
        if not all(bound["output_mask"]) or any(one is None for one in found):
            return None
        return tuple(meta_of(one) for one in found)

    return Rule(infer)


def with_places(values: Rule, expects: str | None = None) -> Rule:
    """Values as another rule foretells them, and int64 places in the same shape."""

    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, Meta]:
        found: Any = values.infer and values.infer(op, bound)
        return found, Meta(found.shape, formats.INT64)

    return Rule(infer, expects=expects)


LIKE_SELF = like("self")
COMPUTED = Rule()


def normalized_dims(dims: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from 0; none, or an empty list, means all of them.

    Raises IndexError for one that is not there.
    """
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return tuple(range(ndim))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(normalized_dim(d, ndim) for d in listed)


def normalized_dim(dim: int, ndim: int) -> int:
    """A dimension counted from 0. A tensor without dimensions takes 0 and -1, as torch has it."""
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise IndexError(f"dimension {dim} is not there: {ndim} dimensions, {-span} to {span - 1}")
    return dim % span


def reduction(kind: str = "same") -> Rule:
    """Over `dim` (all where it is missing), kept with size 1 where `keepdim` says so.

    kind: "same", "sum" (integers become int64), "real" (of complex numbers), "index" (int64).
    """

    def infer(op: Op, bound: dict[str, Any]) -> Meta:
        of = bound["self"]
        dims = set(normalized_dims(bound.get("dim"), len(of.shape)))
        keep = bound.get("keepdim", False)
        shape = tuple(
            1 if d in dims else size for d, size in enumerate(of.shape) if keep or d not in dims
        )
        return Meta(shape, _reduced(kind, of.dtype, bound.get("dtype")))

    return Rule(infer)


def _reduced(kind: str, of: numpy.dtype[Any], dtype: Any) -> numpy.dtype[Any]:
    if kind == "real":
        return formats.real_of(formats.asked(dtype, of))
    if kind == "index":
        return formats.INT64
    return formats.asked(dtype, formats.of_sums(of) if kind == "sum" else of)
