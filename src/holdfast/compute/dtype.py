"""Dtypes by torch's names, and type promotion as torch does it.

A dtype is always a `numpy.dtype`; bfloat16 and float8 need ml_dtypes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from holdfast.base.errors import BadInput

try:
    import ml_dtypes
except ImportError:  # then there is no bfloat16 and float8
    ml_dtypes = None

_EXTRA = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
PLAIN = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
DTYPES: dict[str, numpy.dtype[Any]] = {name: numpy.dtype(name) for name in PLAIN}
if ml_dtypes is not None:
    DTYPES.update({name: numpy.dtype(getattr(ml_dtypes, name)) for name in _EXTRA})

BOOL, INT64 = DTYPES["bool"], DTYPES["int64"]
FLOAT16, FLOAT32, FLOAT64 = DTYPES["float16"], DTYPES["float32"], DTYPES["float64"]
COMPLEX64, COMPLEX128 = DTYPES["complex64"], DTYPES["complex128"]

_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}
_ALIASES |= {"int": "int32", "short": "int16", "char": "int8", "byte": "uint8"}
_ALIASES |= {"cfloat": "complex64", "cdouble": "complex128"}
_PYTHON = {bool: BOOL, int: INT64, float: FLOAT32, complex: COMPLEX64}
_CATEGORY_OF_KIND = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
_CATEGORIES: dict[numpy.dtype[Any], int] = {
    kind: _CATEGORY_OF_KIND.get(kind.kind, 2) for kind in DTYPES.values()
}
BOOLEAN, INTEGER, FLOATING, COMPLEX = range(4)

# Sums in these dtypes would be too inexact: kernels compute in float32 and round once.
NARROW = frozenset(DTYPES[name] for name in ("float16", *_EXTRA) if name in DTYPES)


def dtype(of: Any) -> numpy.dtype[Any]:
    """The dtype for a name, a NumPy or torch dtype, or a Python type.

    Raises BadInput that lists the names.
    """
    if isinstance(of, numpy.dtype) and of in _CATEGORIES:
        return of
    if isinstance(of, type) and of in _PYTHON:
        return _PYTHON[of]
    name = str(of).removeprefix("torch.") if not isinstance(of, type) else None
    found = DTYPES.get(_ALIASES.get(name, name)) if name else None
    if found is None:
        found = _from_numpy(of)
    if found is None:
        missing = name in _EXTRA
        raise BadInput(
            f"{of!r} is no dtype" if not missing else f"{name} needs ml_dtypes",
            expected=f"one of {', '.join(DTYPES)}",
            hint="pip install 'holdfast[compute]'" if missing else None,
        )
    return found


def _from_numpy(of: Any) -> numpy.dtype[Any] | None:
    try:
        found = numpy.dtype(of).newbyteorder("=")
    except TypeError:
        return None
    return found if found in _CATEGORIES else None


def category(kind: numpy.dtype[Any]) -> int:
    """BOOLEAN, INTEGER, FLOATING or COMPLEX, in that order."""
    return _CATEGORIES[kind]


def is_floating(kind: numpy.dtype[Any]) -> bool:
    return _CATEGORIES[kind] == FLOATING


def is_complex(kind: numpy.dtype[Any]) -> bool:
    return _CATEGORIES[kind] == COMPLEX


def real_of(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype of the real part of a complex dtype; any other dtype itself."""
    return {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}.get(kind, kind)


def complex_of(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The complex dtype whose parts have this dtype."""
    return {FLOAT64: COMPLEX128, COMPLEX128: COMPLEX128}.get(kind, COMPLEX64)


def working(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype a kernel computes in: float32 for narrow dtypes."""
    return FLOAT32 if kind in NARROW else kind


def dtype_or(kind: Any, otherwise: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype of `kind`; `otherwise` if it is None."""
    return otherwise if kind is None else dtype(kind)


def with_fractions(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """float32 for integers and booleans; any other dtype itself."""
    return FLOAT32 if _CATEGORIES[kind] < FLOATING else kind


def of_sums(kind: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype of sums and products: int64 for integers and booleans."""
    return INT64 if _CATEGORIES[kind] < FLOATING else kind


@functools.cache
def promote(one: numpy.dtype[Any], other: numpy.dtype[Any]) -> numpy.dtype[Any]:
    """The dtype that holds both, as torch decides (int64 and float16 promote to float16)."""
    if one == other:
        return one
    low, high = sorted((one, other), key=category)
    if category(low) != category(high):
        if category(high) == COMPLEX and low == FLOAT64:
            return COMPLEX128
        return high
    if category(one) == FLOATING and (one in NARROW and other in NARROW):
        return FLOAT32
    if one in NARROW or other in NARROW:
        return other if one in NARROW else one
    return numpy.promote_types(one, other)


def of_scalar(value: Any) -> numpy.dtype[Any]:
    """The dtype of a Python scalar when no array decides."""
    return _PYTHON[type(value)] if type(value) in _PYTHON else dtype(numpy.asarray(value).dtype)


def result_type(*operands: Any) -> numpy.dtype[Any]:
    """The dtype of a result, as torch decides it.

    Arrays with dimensions take precedence over 0-d arrays, and those over Python scalars: one of
    lower precedence decides only if its category is higher.
    """
    ranks: list[numpy.dtype[Any] | None] = [None, None, None]
    for operand in operands:
        if operand is None:
            continue
        if hasattr(operand, "ndim"):
            rank, kind = (0 if operand.ndim else 1), operand.dtype
        else:
            rank, kind = 2, of_scalar(operand)
        found = ranks[rank]
        ranks[rank] = kind if found is None else promote(found, kind)
    first, *others = [kind for kind in ranks if kind is not None] or [FLOAT32]
    for kind in others:
        if category(kind) > category(first):
            widens = category(kind) == COMPLEX and category(first) == FLOATING
            first = complex_of(first) if widens else kind
    return first
