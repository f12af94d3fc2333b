"""NumPy arrays from whatever a caller passes as data: lists, scalars, arrays, torch tensors."""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes


def host_array(data: Any, kind: numpy.dtype[Any] | None) -> Any:
    """Convert data to a host array of dtype `kind` (its own if None). Raises BadInput."""
    if hasattr(data, "_array"):
        data = data.data
    elif hasattr(data, "detach"):  # a torch tensor
        data = _from_torch(data.detach().cpu())
    try:
        array = numpy.asarray(data)
        if array.dtype.kind in "OUSMm":
            raise ValueError("rows of different lengths, or no numbers")
        if kind is None or array.dtype == kind:
            return array
        _check_numbers(array, kind, isinstance(data, list | tuple | int | float))
        return array.astype(kind)
    except (ValueError, TypeError) as exc:
        raise BadInput(
            f"cannot make a tensor of {type(data).__name__}: {exc}",
            expected="numbers, in rows of one length, or an array",
        ) from exc


def _check_numbers(array: Any, kind: numpy.dtype[Any], plain: bool) -> None:
    """Raise ValueError if the cast would silently change values."""
    before, after = array.dtype.kind, kind.kind
    if before == "c" and after not in "cb":
        raise ValueError(f"{kind} cannot hold complex numbers")
    if after not in "iu" or not array.size:
        return
    if before == "f" and not numpy.isfinite(array).all():
        raise ValueError(f"{kind} cannot hold NaN or infinity")
    ends = numpy.iinfo(kind)
    if plain and before in "iu" and not ends.min <= array.min() <= array.max() <= ends.max:
        raise ValueError(f"{kind} ranges from {ends.min} to {ends.max}")


def _from_torch(data: Any) -> Any:
    """Convert what NumPy cannot read: torch's narrow dtypes and lazy conjugates."""
    kind = dtypes.dtype(data.dtype)
    if kind in dtypes.NARROW and kind != dtypes.FLOAT16:
        return data.float().numpy().astype(kind)
    return data.resolve_conj().resolve_neg()
