"""Reading, writing and reducing at indices: what indexing, scatter and embedding share.

Arrays are seen as [outer, indexed, inner], and copied only if their strides do not allow it. Sums
are deterministic on CPUs, and on GPUs unless more than `_MANY` float32 rows are added. If several
values are written to one index any of them may win, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.layout.views import as_bits, bits_type, make_copy
from holdfast.compute.engines.opencl.reduce.row_sort import argsort
from holdfast.compute.engines.opencl.runtime.array import Array, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import check_double, storage, working

_LEAST = 4096  # elements that make a work-item worthwhile on CPUs
_MOST_GROUPS = 1 << 16
_MANY = 1 << 16  # indices from which sorting them costs more than atomic adds


# ---- launching


def launch_over(
    engine: CLEngine, kernel: Any, count: int, *args: Any, numbers: int | None = None
) -> None:
    """Launch a kernel over `count` elements, or over rows that have `numbers` elements in all.

    The last argument of the kernel is how many of them a work-item does on a CPU.
    """
    if engine.mapping == "cpu":
        least = _LEAST if numbers is None else -(-_LEAST * count // max(numbers, 1))
        each = max(least, -(-count // (engine.units * 4)))
        engine.launch(kernel, (-(-count // each),), (1,), *args, each)
        return
    group = engine.group
    groups = min(-(-(numbers or count) // group), _MOST_GROUPS)
    engine.launch(kernel, (groups * group,), (group,), *args, 0)


def move_kernel(engine: CLEngine, function: str, type: str = "uint") -> Any:
    """A kernel that moves elements of a C type."""
    return engine.kernel("spans indexing", function, WORD=type)


def compute_kernel(engine: CLEngine, function: str, kind: Any, **defines: Any) -> Any:
    """A kernel that computes with elements of a dtype."""
    return engine.kernel(
        "spans indexing", function, WORK=working(kind), KIND=storage(kind), **defines
    )


# ---- arrays as [outer, indexed, inner]


class Lines(NamedTuple):
    """An array of bits whose dimensions before and behind the indexed ones are merged."""

    array: Array
    outer: int
    inner: int
    outer_step: int
    inner_step: int
    steps: tuple[int, ...]  # of the indexed dimensions


def merge_dims(shape: Sequence[int], steps: Sequence[int]) -> tuple[int, int] | None:
    """Merge dimensions into one: (size, step); None if their strides do not allow it."""
    sizes, (kept,) = collapse_dims(shape, [steps])
    if len(sizes) > 1:
        return None
    return (sizes[0], kept[0]) if sizes else (1, 0)


def as_lines(engine: CLEngine, array: Array, first: int, last: int) -> Lines:
    """`array` with `first` to `last - 1` as its indexed dimensions; copied only if needed."""
    plain = as_bits(array)
    outer = merge_dims(plain.shape[:first], plain.steps[:first])
    inner = merge_dims(plain.shape[last:], plain.steps[last:])
    if outer is None or inner is None:
        return as_lines(engine, make_copy(engine, array), first, last)
    return Lines(plain, outer[0], inner[0], outer[1], inner[1], plain.steps[first:last])


def memory_offsets(
    engine: CLEngine, indices: Sequence[Array], sizes: Any, steps: Any, negative: bool = True
) -> Array:
    """The memory offsets that contiguous index arrays of one shape point to.

    `negative`: indices may count from the end.
    """
    if len(indices) == 1 and steps[0] == 1 and not negative:
        return indices[0]
    made = engine.alloc(indices[0].shape, dtypes.INT64)
    if not made.size:
        return made
    kernel = move_kernel(engine, "places")
    for number, (index, size, step) in enumerate(zip(indices, sizes, steps, strict=True)):
        first = int(number == 0)
        launch_over(engine, kernel, made.size, made, index, made.size, size, step, first)
    return made


# ---- reading


def take_at(
    engine: CLEngine, array: Array, at: int, indices: Sequence[Array], negative: bool = True
) -> Array:
    """The elements at indices of the dimensions from `at` on; the indices are checked already."""
    last, chosen = at + len(indices), indices[0].shape
    shape = (*array.shape[:at], *chosen, *array.shape[last:])
    made = engine.alloc(shape, array.dtype)
    if not made.size:
        return made
    one = as_lines(engine, array, at, last)
    place = memory_offsets(engine, indices, array.shape[at:last], one.steps, negative)
    launch_over(
        engine, move_kernel(engine, "take", bits_type(one.array)), one.outer * place.size,
        made, one.array, place, one.outer, place.size, one.inner, one.outer_step, one.inner_step,
        numbers=one.outer * place.size * one.inner,
    )  # fmt: skip
    return made


# ---- writing and reducing


def _as_values(engine: CLEngine, array: Array, first: int, last: int) -> tuple[Array, list[int]]:
    """Values whose dimensions `first` to `last - 1` match the indices, and the steps of the
    dimensions before, at and behind the indices.
    """
    found = [
        merge_dims(array.shape[part], array.steps[part])
        for part in (slice(0, first), slice(first, last), slice(last, None))
    ]
    if None in found:
        return _as_values(engine, make_copy(engine, array), first, last)
    return array, [one[1] for one in found if one is not None]


def write_at(engine: CLEngine, out: Array, at: int, place: Any, values: Array) -> None:
    """Write values into `out`, in place, at indices of the dimensions from `at` on."""
    if not values.size:
        return
    one = as_lines(engine, out, at, at + len(place))
    chosen = memory_offsets(engine, place, out.shape[at : at + len(place)], one.steps)
    given, steps = _as_values(engine, as_bits(values), at, at + place[0].ndim)
    kernel, count = move_kernel(engine, "put", bits_type(one.array)), chosen.size
    launch_over(
        engine, kernel, one.outer * count * one.inner, one.array, given, chosen, one.outer, count,
        one.inner, one.outer_step, one.inner_step, *steps,
    )  # fmt: skip


def reduce_at(
    engine: CLEngine, out: Array, at: int, place: Any, values: Array, how: str = "add"
) -> None:
    """Add values to `out`, or reduce them in another way, in place; indices may repeat."""
    if not values.size:
        return
    one = as_lines(engine, out, at, at + len(place))
    chosen = memory_offsets(engine, place, out.shape[at : at + len(place)], one.steps)
    given, steps = _as_values(engine, values, at, at + place[0].ndim)
    kind, count = out.dtype, chosen.size
    check_double(engine, kind)
    how = "or" if kind == dtypes.BOOL and how == "add" else how
    sizes = one.outer, count, one.inner, one.outer_step, one.inner_step
    args = (out, given, chosen, *sizes, *steps)
    if engine.mapping == "cpu":
        rows = one.outer * one.inner
        each = max(16, -(-rows // (engine.units * 4)))
        kernel = compute_kernel(engine, "meet", kind, OP=how)
        engine.launch(kernel, (-(-rows // each),), (1,), *args, each)
        return
    group = engine.group
    size = min(-(-one.outer * count * one.inner // group), 1 << 16) * group
    if how == "add" and kind == dtypes.FLOAT32 and count > _MANY:
        engine.launch(move_kernel(engine, "add_atomic"), (size,), (group,), *args)
        return
    ranked = argsort(engine, chosen.view(chosen.dtype, (1, count)))
    kernel = compute_kernel(engine, "meet_sorted", kind, OP=how)
    engine.launch(kernel, (size,), (group,), *args[:3], ranked, *args[3:])


def add_in_place(engine: CLEngine, one: Array, other: Array) -> Array:
    """Add `other` to `one`, which has the same shape and dtype, in place."""
    kind = working(one.dtype)
    given = [strided_kernels.Input("one", one, kind), strided_kernels.Input("other", other, kind)]
    text = "$one | $other" if one.dtype == dtypes.BOOL else "$one + $other"
    return strided_kernels.compute(engine, text, given, [], one)


def cast_scaled(engine: CLEngine, array: Array, kind: Any, factor: Any) -> Array:
    """A cast to `kind`, times a factor."""
    if factor == 1 or kind == dtypes.BOOL:
        return engine.cast(array, kind)
    type = working(kind)
    number = strided_kernels.Number("factor", numpy.asarray(factor).astype(kind)[()], type)
    made = engine.alloc_like(array, kind)
    given = strided_kernels.Input("self", array, type)
    return strided_kernels.compute(engine, "$self * $factor", [given], [number], made)
