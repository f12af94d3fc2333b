"""Kernels: order and what depends on it.

Covers: sort, topk, kthvalue, medians, mode, where a number belongs in an order,
whether it is there.
Leaves to others: which numbers there are (the host).
Promise: equal numbers keep their order, and NaN counts as the greatest, as torch has it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.indexing import along, gathered, in_range
from holdfast.compute.engines.opencl.kernels import kernel, working
from holdfast.compute.engines.opencl.placing import computing, spread, taken
from holdfast.compute.engines.opencl.views import cut, fill, filled, fresh, moved, picked, shaped

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_INT32 = numpy.dtype(numpy.int32)
_BLOCK = {"cpu": 32, "gpu": 512}
_EACH = {"cpu": 4096, "gpu": 16}  # numbers that a work-item merges, at least
_FEW = 256  # that are picked out of a row on CPUs, where it is much longer
_MOST = 2**31 - 1  # numbers in a row: places are counted in 32 bits

# Whole numbers in the order of the numbers; -0 is 0, and all that are no numbers are the greatest.
_HELPERS = """
inline uint key_float(float v) {
    uint word = v == 0 ? 0u : as_uint(v);
    return v != v ? 0xffffffffu : word >> 31 ? ~word : word | 0x80000000u;
}
#ifdef HAS_DOUBLE
inline ulong key_double(double v) {
    ulong word = v == 0 ? 0ul : as_ulong(v);
    return v != v ? 0xfffffffffffffffful : word >> 63 ? ~word : word | 0x8000000000000000ul;
}
#endif
"""
_KEYS = {
    "float": "key_float($self)",
    "double": "key_double($self)",
    "long": "(ulong)$self ^ 0x8000000000000000ul",
    "ulong": "$self",
    **dict.fromkeys(("char", "short", "int"), "(uint)(int)$self ^ 0x80000000u"),
    **dict.fromkeys(("uchar", "ushort", "uint"), "(uint)$self"),
}


class Sorted(NamedTuple):
    """Keys of rows in their order, and the places they had."""

    keys: Array
    places: Array


def sorted_rows(engine: OpenCLEngine, array: Array, descending: bool = False) -> Sorted:
    """Sort along the last dimension."""
    return _sorted(engine, _keys(engine, array, descending))


def _sorted(engine: OpenCLEngine, keys: Array) -> Sorted:
    places = engine.alloc(keys.shape, _INT32)
    if not keys.size:
        return Sorted(keys, places)
    return _merged(engine, _blocks(engine, keys, places))


def _keys(engine: OpenCLEngine, array: Array, descending: bool) -> Array:
    if array.shape[-1] > _MOST:
        raise NotHere(f"rows of {array.shape[-1]} numbers")
    type = working(array.dtype)
    if type == "double" and not engine.has_double:
        raise NotHere("no float64 on this device")
    wide = type in ("double", "long", "ulong")
    made = engine.alloc(array.shape, numpy.dtype(numpy.uint64 if wide else numpy.uint32))
    text = f"~({_KEYS[type]})" if descending else _KEYS[type]
    given = elementwise.Input("self", array, type)
    helpers = _HELPERS if "key" in text else ""
    return elementwise.compute(engine, text, [given], [], made, helpers)


def _kernel(engine: OpenCLEngine, function: str, keys: Array) -> Any:
    type = "ulong" if keys.itemsize == 8 else "uint"
    return engine.kernel("sorting", function, KEY=type, BLOCK=_BLOCK[engine.mapping])


def _blocks(engine: OpenCLEngine, keys: Array, places: Array) -> Sorted:
    made, count = engine.alloc(keys.shape, keys.dtype), keys.shape[-1]
    rows, blocks = keys.size // count, -(-count // _BLOCK[engine.mapping])
    kernel = _kernel(engine, "sort_blocks", keys)
    if engine.mapping == "cpu":
        each = max(32, -(-rows * blocks // (engine.units * 4)))
        size, group = -(-rows * blocks // each), 1
    else:
        each, group = 0, engine.group
        size = rows * blocks * group
    engine.launch(kernel, (size,), (group,), keys, made, places, rows, count, blocks, each)
    return Sorted(made, places)


def _merged(engine: OpenCLEngine, found: Sorted) -> Sorted:
    count, wide = found.keys.shape[-1], _BLOCK[engine.mapping]
    if wide >= count:
        return found
    rows = found.keys.size // count
    other = Sorted(*(engine.alloc(one.shape, one.dtype) for one in found))
    each, group = _EACH[engine.mapping], 1
    if engine.mapping == "cpu":
        each = max(each, -(-rows * count // (engine.units * 4)))
    else:
        group = min(64, engine.most_items)
    parts = -(-count // each)
    size = -(-rows * parts // group) * group
    kernel = _kernel(engine, "merge", found.keys)
    while wide < count:
        engine.launch(kernel, (size,), (group,), *found, *other, rows, count, wide, parts, each)
        found, other, wide = other, found, 2 * wide
    return found


def order(engine: OpenCLEngine, array: Array, descending: bool = False) -> Array:
    """Indices that sort along the last dimension, in int64; equal numbers keep their order."""
    return engine.cast(sorted_rows(engine, array, descending).places, formats.INT64)


# ---- ops


def _back(engine: OpenCLEngine, places: Array, dim: int) -> Array:
    """Places with the dimension that was last where it was, contiguous int64."""
    return engine.contiguous(moved(places, places.ndim - 1, dim), formats.INT64)


def _picked(engine: OpenCLEngine, self: Array, array: Array, found: Array, dim: int) -> Any:
    """Values and indices; `found` is contiguous, and has the dimensions of `array`."""
    values = gathered(engine, array, dim, found)
    if self.ndim:
        return values, found
    return values.viewed(values.dtype, ()), found.viewed(found.dtype, ())


@kernel("sort", "sort.stable")
def sort(
    engine: OpenCLEngine, self: Array, dim: int = -1, descending: bool = False,
    stable: bool | None = None,
) -> Any:  # fmt: skip
    if self.dtype.kind == "c":
        raise TypeError("complex numbers have no order")
    array, dim = along(self, dim)
    if not array.size:
        return fresh(engine, self), engine.alloc(self.shape, formats.INT64)
    places = sorted_rows(engine, moved(array, dim, array.ndim - 1), descending).places
    return _picked(engine, self, array, _back(engine, places, dim), dim)


@kernel("topk")
def topk(
    engine: OpenCLEngine, self: Array, k: int, dim: int = -1, largest: bool = True,
    sorted: bool = True,
) -> Any:  # fmt: skip
    array, dim = along(self, dim)
    size = array.shape[dim]
    if not 0 <= k <= size:
        raise ValueError(f"k is {k}, dimension {dim} has the size {size}")
    places = _first(engine, moved(array, dim, array.ndim - 1), k, largest)
    found = _back(engine, places, dim)
    if not found.size:
        return engine.alloc(found.shape, self.dtype), found
    return _picked(engine, self, array, found, dim)


def _first(engine: OpenCLEngine, rows: Array, few: int, descending: bool) -> Array:
    """Places of the first few of each row in its order."""
    count, last = rows.shape[-1], rows.ndim - 1
    keys = _keys(engine, rows, descending)
    if engine.mapping == "gpu" or not 0 < few <= _FEW or count < 16 * few or not rows.size:
        return cut(_sorted(engine, keys).places, last, slice(0, few))
    many = rows.size // count
    parts = max(1, min(engine.units * 4 // many, count // (4 * few)))
    shape = (*rows.shape[:-1], parts * few)
    made = Sorted(engine.alloc(shape, keys.dtype), engine.alloc(shape, _INT32))
    engine.launch(
        _kernel(engine, "smallest", keys), (many * parts,), (1,),
        keys, *made, many, count, parts, count // parts, few,
    )  # fmt: skip
    if parts == 1:
        return made.places
    # Parts are in order, and so are equal numbers after sorting what is left.
    best = cut(_sorted(engine, made.keys).places, last, slice(0, few))
    return gathered(engine, made.places, last, engine.contiguous(best, formats.INT64))


# ---- one of each row


def _one(
    engine: OpenCLEngine, self: Array, array: Array, places: Array, dim: int, keepdim: bool
) -> Any:
    """Values and indices, where `places` are without `dim`."""
    shape = (*array.shape[:dim], 1, *array.shape[dim + 1 :])
    found = engine.contiguous(places, formats.INT64).viewed(formats.INT64, shape)
    if not found.size:
        values = engine.alloc(shape, self.dtype)
    else:
        values = gathered(engine, array, dim, found)
    if self.ndim and keepdim:
        return values, found
    return picked(values, dim, 0), picked(found, dim, 0)


@kernel("kthvalue")
def kthvalue(
    engine: OpenCLEngine, self: Array, k: int, dim: int = -1, keepdim: bool = False
) -> Any:
    array, dim = along(self, dim)
    if not 1 <= k <= array.shape[dim]:
        raise ValueError(f"k is {k}, dimension {dim} has the size {array.shape[dim]}")
    places = sorted_rows(engine, moved(array, dim, array.ndim - 1)).places
    chosen = picked(places, places.ndim - 1, k - 1)
    return _one(engine, self, array, chosen, dim, keepdim)


def _pick(engine: OpenCLEngine, name: str, rows: Array, skip: bool) -> Array:
    """A place of each row, by a kernel that looks at its keys in order."""
    found = sorted_rows(engine, rows)
    made = engine.alloc(rows.shape[:-1], formats.INT64)
    if not made.size:
        return made
    nan = found.keys.dtype.type(2 ** (8 * found.keys.itemsize) - 1)
    nans = int(skip) if formats.is_floating(rows.dtype) else 2
    group = 1 if engine.mapping == "cpu" else min(64, engine.most_items)
    size = min(made.size, engine.units * 4 if group == 1 else 1 << 20)
    engine.launch(
        _kernel(engine, name, found.keys), (-(-size // group) * group,), (group,),
        made, *found, made.size, rows.shape[-1], nan, nans,
    )  # fmt: skip
    return made


@kernel("mode")
def mode(engine: OpenCLEngine, self: Array, dim: int = -1, keepdim: bool = False) -> Any:
    array, dim = along(self, dim)
    if not array.shape[dim]:
        raise IndexError(f"dimension {dim} has the size 0: there is no mode")
    places = _pick(engine, "pick_mode", moved(array, dim, array.ndim - 1), False)
    return _one(engine, self, array, places, dim, keepdim)


@kernel("median.dim")
def median_dim(engine: OpenCLEngine, self: Array, dim: int, keepdim: bool = False) -> Any:
    return _median(engine, self, dim, keepdim, False)


@kernel("nanmedian.dim")
def nanmedian_dim(engine: OpenCLEngine, self: Array, dim: int, keepdim: bool = False) -> Any:
    return _median(engine, self, dim, keepdim, True)


def _median(engine: OpenCLEngine, self: Array, dim: int, keepdim: bool, skip: bool) -> Any:
    array, dim = along(self, dim)
    if not array.shape[dim]:
        raise IndexError(f"dimension {dim} has the size 0: there is no median")
    places = _pick(engine, "pick_middle", moved(array, dim, array.ndim - 1), skip)
    return _one(engine, self, array, places, dim, keepdim)


@kernel("median")
def median(engine: OpenCLEngine, self: Array) -> Array:
    return _middle(engine, self, False)


@kernel("nanmedian")
def nanmedian(engine: OpenCLEngine, self: Array) -> Array:
    return _middle(engine, self, True)


def _middle(engine: OpenCLEngine, self: Array, skip: bool) -> Array:
    if not self.size:
        floating = formats.is_floating(self.dtype)
        value = math.nan if floating else numpy.iinfo(self.dtype).min
        return filled(engine, (), self.dtype, value)
    flat = engine.contiguous(self).viewed(self.dtype, (self.size,))
    return _median(engine, flat, 0, False, skip)[0]


# ---- where a number belongs


@kernel("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    engine: OpenCLEngine, self: Any, boundaries: Array, out_int32: bool = False,
    right: bool = False,
) -> Array:  # fmt: skip
    if boundaries.ndim != 1:
        raise ValueError(f"the boundaries have {boundaries.ndim} dimensions, one is expected")
    return searchsorted(engine, boundaries, self, out_int32, right)


@kernel("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    engine: OpenCLEngine,
    sorted_sequence: Array,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Array:
    if side not in (None, "left", "right"):
        raise ValueError(f"there is no side {side!r}; left and right are")
    if side == "left" and right:
        raise ValueError("side='left' and right=True contradict each other")
    sequence = sorted_sequence
    if sorter is not None:
        places = in_range(engine, sorter, sequence.shape[-1], sequence.ndim - 1)
        sequence = gathered(engine, sequence, sequence.ndim - 1, places)
    sequence, values = _comparable(engine, sequence, self)
    if sequence.ndim != 1 and (not values.ndim or sequence.shape[:-1] != values.shape[:-1]):
        raise ValueError(
            f"the order of shape {list(sequence.shape)} and the values of shape "
            f"{list(values.shape)} differ before the last dimension"
        )
    found = engine.alloc(values.shape, formats.INT64)
    if values.size:
        wide = values.shape[-1] if sequence.ndim > 1 else 0
        kernel = computing(engine, "search", sequence.dtype)
        after = int(right or side == "right")
        spread(
            engine, kernel, values.size,
            found, sequence, values, values.size, sequence.shape[-1], wide, after,
        )  # fmt: skip
    return engine.cast(found, numpy.dtype(numpy.int32)) if out_int32 else found


def _comparable(engine: OpenCLEngine, sequence: Array, values: Any) -> tuple[Array, Array]:
    """Both contiguous, in a format that can be compared."""
    kind = sequence.dtype
    if type(values) is Array:
        kind = formats.promote(kind, values.dtype)
    elif isinstance(values, float) and not formats.is_floating(kind):
        kind = formats.FLOAT64
    kind = formats.working(kind)
    if kind == formats.FLOAT64 and not engine.has_double:
        raise NotHere("no float64 on this device")
    if type(values) is not Array:
        values = filled(engine, (), kind, values)
    return engine.contiguous(sequence, kind), engine.contiguous(values, kind)


@kernel("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    engine: OpenCLEngine, *given: Any, assume_unique: bool = False, invert: bool = False,
    **named: Any,
) -> Array:  # fmt: skip
    elements, tests = (*given, *named.values())
    kind = formats.working(formats.result_type(elements, tests))
    one, other = (
        engine.cast(a, kind) if type(a) is Array else filled(engine, (), kind, a)
        for a in (elements, tests)
    )
    made = engine.alloc(one.shape, formats.BOOL)
    if not one.size or not other.size:
        fill(engine, made, invert)
        return made
    ranked, _ = sort(engine, shaped(engine, other, (other.size,)), 0)
    place = engine.contiguous(searchsorted(engine, ranked, one))
    last = elementwise.Number("last", other.size - 1, "long")
    within = elementwise.Input("place", place, "long")
    elementwise.compute(engine, "min($place, $last)", [within], [last], place)
    type_ = working(kind)
    pair = [
        elementwise.Input("one", one, type_),
        elementwise.Input("found", taken(engine, ranked, 0, [place]), type_),
    ]
    text = "$one != $found" if invert else "$one == $found"
    return elementwise.compute(engine, text, pair, [], made)
