"""Stable sort of the rows of an array, with NaN as the largest element.

Rows are mapped to unsigned keys in the order of the elements, sorted in blocks, and merged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import check_double, working

INT32 = numpy.dtype(numpy.int32)
_BLOCK = {"cpu": 32, "gpu": 512}
_EACH = {"cpu": 4096, "gpu": 16}  # elements that a work-item merges, at least
_MOST = 2**31 - 1  # elements of a row: indices have 32 bits

# Unsigned keys in the order of the elements: -0 equals 0, and every NaN is the largest.
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


class SortedRows(NamedTuple):
    """Keys of rows in order, and the indices they had."""

    keys: Array
    indices: Array


def sort_rows(engine: CLEngine, array: Array, descending: bool = False) -> SortedRows:
    """Sort along the last dimension."""
    return sort_keys(engine, make_keys(engine, array, descending))


def sort_keys(engine: CLEngine, keys: Array) -> SortedRows:
    places = engine.alloc(keys.shape, INT32)
    if not keys.size:
        return SortedRows(keys, places)
    return _merge(engine, _sort_blocks(engine, keys, places))


def make_keys(engine: CLEngine, array: Array, descending: bool) -> Array:
    if array.shape[-1] > _MOST:
        raise NotHere(f"rows of {array.shape[-1]} numbers")
    type = working(array.dtype)
    check_double(engine, type)
    wide = type in ("double", "long", "ulong")
    made = engine.alloc(array.shape, numpy.dtype(numpy.uint64 if wide else numpy.uint32))
    text = f"~({_KEYS[type]})" if descending else _KEYS[type]
    given = strided_kernels.Input("self", array, type)
    helpers = _HELPERS if "key" in text else ""
    return strided_kernels.compute(engine, text, [given], [], made, helpers)


def sort_kernel(engine: CLEngine, function: str, keys: Array) -> Any:
    type = "ulong" if keys.itemsize == 8 else "uint"
    return engine.kernel("sorting", function, KEY=type, BLOCK=_BLOCK[engine.mapping])


def _sort_blocks(engine: CLEngine, keys: Array, places: Array) -> SortedRows:
    made, count = engine.alloc(keys.shape, keys.dtype), keys.shape[-1]
    rows, blocks = keys.size // count, -(-count // _BLOCK[engine.mapping])
    kernel = sort_kernel(engine, "sort_blocks", keys)
    if engine.mapping == "cpu":
        each = max(32, -(-rows * blocks // (engine.units * 4)))
        size, group = -(-rows * blocks // each), 1
    else:
        each, group = 0, engine.group
        size = rows * blocks * group
    engine.launch(kernel, (size,), (group,), keys, made, places, rows, count, blocks, each)
    return SortedRows(made, places)


def _merge(engine: CLEngine, found: SortedRows) -> SortedRows:
    count, wide = found.keys.shape[-1], _BLOCK[engine.mapping]
    if wide >= count:
        return found
    rows = found.keys.size // count
    other = SortedRows(*(engine.alloc(one.shape, one.dtype) for one in found))
    each, group = _EACH[engine.mapping], 1
    if engine.mapping == "cpu":
        each = max(each, -(-rows * count // (engine.units * 4)))
    else:
        group = min(64, engine.most_items)
    parts = -(-count // each)
    size = -(-rows * parts // group) * group
    kernel = sort_kernel(engine, "merge", found.keys)
    while wide < count:
        engine.launch(kernel, (size,), (group,), *found, *other, rows, count, wide, parts, each)
        found, other, wide = other, found, 2 * wide
    return found


def argsort(engine: CLEngine, array: Array, descending: bool = False) -> Array:
    """int64 indices that sort along the last dimension, stable."""
    return engine.cast(sort_rows(engine, array, descending).indices, dtypes.INT64)
