"""Indices as engines take them, and the checks of shapes and dtypes before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.ops.rules import normalize_dim

Shape = Sequence[int]


# ---- lists of indices


def resolve_indices(
    shape: Shape,
    indices: Sequence[Any],
    locate: Callable[[Any], Sequence[Any]],
    prepare: Callable[[Any, tuple[int, ...], int], Any],
) -> list[Any]:
    """For each dimension an index, all of one shape, or None for all of the dimension.

    `locate` gives the indices of a mask's true elements, one array for each dimension. `prepare`
    checks the range of an index for a dimension and broadcasts it. Raises IndexError.
    """
    found: list[Any] = []
    for index in indices:
        if index is None:
            found.append(None)
        elif index.dtype == dtypes.BOOL or index.dtype == numpy.uint8:
            _check_mask(shape, len(found), index)
            found.extend(locate(index) if index.ndim else ())
        elif index.dtype.kind not in "iu":
            raise IndexError(f"an index has dtype {index.dtype}; integers and booleans are valid")
        else:
            found.append(index)
    if len(found) > len(shape):
        raise IndexError(f"{len(found)} indices for {len(shape)} dimensions")
    size = _common_shape([f.shape for f in found if f is not None])
    ready = [None if one is None else prepare(one, size, dim) for dim, one in enumerate(found)]
    return ready + [None] * (len(shape) - len(found))


def _common_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    if len(shapes) == 1:
        return shapes[0]
    try:
        return numpy.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(str(list(shape)) for shape in shapes)
        raise IndexError(f"indices of shapes {listed} do not broadcast") from None


def _check_mask(shape: Shape, dim: int, mask: Any) -> None:
    if tuple(shape[dim : dim + mask.ndim]) != mask.shape:
        raise IndexError(
            f"a mask of shape {list(mask.shape)} does not fit {list(shape)} at dimension {dim}"
        )


def single_mask(shape: Shape, indices: Sequence[Any]) -> tuple[int, Any] | None:
    """The mask and its first dimension if the only index is a boolean mask, else None."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != dtypes.BOOL or not given[0][1].ndim:
        return None
    _check_mask(shape, *given[0])
    return given[0]


def indexed_shape(shape: Shape, dims: Sequence[int], chosen: Shape) -> tuple[tuple[int, ...], int]:
    """The shape that indices of shape `chosen` for `dims` select, and where `chosen` is in it.

    It comes first unless `dims` are adjacent.
    """
    rest = [size for d, size in enumerate(shape) if d not in dims]
    at = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    return (*rest[:at], *chosen, *rest[at:]), at


def check_values(values: Any, shape: Shape) -> None:
    """Raise ValueError for values that do not broadcast to the shape that indices select."""
    pairs = zip(reversed(values.shape), reversed(shape), strict=False)
    if len(values.shape) > len(shape) or any(n not in (1, size) for n, size in pairs):
        raise ValueError(
            f"values of shape {list(values.shape)} do not broadcast to the indexed shape "
            f"{list(shape)}"
        )


def check_put(
    self: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False
) -> None:
    """Raise TypeError for values of another dtype; torch casts a scalar assigned to a mask."""
    if values.dtype != self.dtype:
        given = [one for one in indices if one is not None]
        masked = not accumulate and len(given) == 1 and given[0].dtype == dtypes.BOOL
        if not masked or math.prod(values.shape) != 1:
            raise TypeError(f"the values are {values.dtype}, the target is {self.dtype}")


# ---- along one dimension


def check_corner(index: Shape, shape: Shape, dim: int | None = None) -> None:
    """Raise ValueError if an index of shape `index` is larger than `shape`, but along `dim`."""
    fits = len(index) == len(shape) and all(
        d == dim or size <= shape[d] for d, size in enumerate(index)
    )
    if not fits:
        where = "" if dim is None else f" but {dim}"
        raise ValueError(
            f"the index of shape {list(index)} does not fit into {list(shape)} "
            f"in every dimension{where}"
        )


def check_gather(self: Any, dim: int, index: Any, sparse_grad: bool = False) -> None:
    """Raise for an index that does not fit; an empty one fits everywhere."""
    dim = normalize_dim(dim, len(self.shape))
    if math.prod(index.shape):
        check_corner(index.shape or (1,), self.shape or (1,), dim)


def check_scatter(names: Sequence[str] = (), listed: str = "") -> Callable[..., None]:
    """The check of a scatter op with these reductions, which a message lists like this."""

    def check(
        self: Any, dim: int, index: Any, src: Any, reduce: str = "", include_self: bool = True
    ) -> None:
        check_reduction(reduce, names, listed)
        check_gather(self, dim, index)
        if hasattr(src, "ndim") and math.prod(index.shape):
            check_dtype(src, self)
            check_corner(index.shape or (1,), src.shape or (1,))

    return check


def check_reduction(reduce: str, names: Sequence[str], listed: str) -> None:
    """Raise ValueError unless a reduction is one of these."""
    if names and reduce not in names:
        raise ValueError(f"there is no reduction {reduce!r}; {listed} are")


def check_dtype(source: Any, target: Any) -> None:
    """Raise TypeError if a source has another dtype than its target."""
    if source.dtype != target.dtype:
        raise TypeError(f"the source is {source.dtype}, the target is {target.dtype}")


def check_flat(self: Any, dim: int, index: Any, value: Any = None) -> None:
    """Raise ValueError for an index with more than one dimension, or a value with any."""
    if index.ndim > 1:
        raise ValueError(f"the index has {index.ndim} dimensions, one is expected")
    if getattr(value, "ndim", 0):
        raise ValueError(f"the value has {value.ndim} dimensions, none is expected")


def check_rows(self: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> None:
    """Raise unless `source` has one row of `self` for every index, in the same dtype."""
    dim = normalize_dim(dim, len(self.shape))
    check_flat(self, dim, index)
    shape: list[int] = list(self.shape or (1,))
    shape[dim] = count = math.prod(index.shape)
    if list(source.shape or (1,)) != shape:
        raise ValueError(
            f"a source of shape {list(source.shape)} for {count} indices along dimension "
            f"{dim} of {list(self.shape or (1,))}"
        )
    check_dtype(source, self)
