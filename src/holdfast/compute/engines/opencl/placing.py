"""Reading, writing and adding at places: what indexing, scattering and lookups share.

Covers: arrays as [outer, places, inner], and the kernels over them; launching over many numbers.
Leaves to others: whether an index is there (`indexing`), what ops make of it.
Promise: an array is copied only where its dimensions cannot be taken as these three. Sums come out
the same every time on CPUs, and on GPUs unless more than `_MANY` rows of float32 are added. Of
several numbers that are written to one place any may stay, as with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere, collapsed
from holdfast.compute.engines.opencl.kernels import storage, working
from holdfast.compute.engines.opencl.views import bits, fresh, word

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_LEAST = 4096  # numbers that are worth a work-item on CPUs
_MOST_GROUPS = 1 << 16
_MANY = 1 << 16  # places from which sorting them costs more than adding in any order


# ---- launching


def spread(
    engine: OpenCLEngine, kernel: Any, count: int, *args: Any, numbers: int | None = None
) -> None:
    """Launch a kernel over `count` numbers, or rows that have `numbers` in all.

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


def moving(engine: OpenCLEngine, function: str, type: str = "uint") -> Any:
    """A kernel that moves numbers of some C type."""
    return engine.kernel("spans indexing", function, WORD=type)


def computing(engine: OpenCLEngine, function: str, kind: Any, **defines: Any) -> Any:
    """A kernel that computes with numbers of a format."""
    return engine.kernel(
        "spans indexing", function, WORK=working(kind), KIND=storage(kind), **defines
    )


# ---- arrays as [outer, places, inner]


class Lines(NamedTuple):
    """An array of bits whose dimensions before and behind `chosen` ones are one each."""

    array: Array
    outer: int
    inner: int
    outer_step: int
    inner_step: int
    steps: tuple[int, ...]  # of the chosen dimensions


def as_one(shape: Sequence[int], steps: Sequence[int]) -> tuple[int, int] | None:
    """Dimensions as one: how many numbers, and the step between them; None if it varies."""
    sizes, (kept,) = collapsed(shape, [steps])
    if len(sizes) > 1:
        return None
    return (sizes[0], kept[0]) if sizes else (1, 0)


def lines(engine: OpenCLEngine, array: Array, first: int, last: int) -> Lines:
    """`array` with `first` to `last - 1` as its chosen dimensions; copied only where it must be."""
    plain = bits(array)
    outer = as_one(plain.shape[:first], plain.steps[:first])
    inner = as_one(plain.shape[last:], plain.steps[last:])
    if outer is None or inner is None:
        return lines(engine, fresh(engine, array), first, last)
    return Lines(plain, outer[0], inner[0], outer[1], inner[1], plain.steps[first:last])


def places(
    engine: OpenCLEngine, indices: Sequence[Array], sizes: Any, steps: Any, negative: bool = True
) -> Array:
    """Where indices of several dimensions point to; they are contiguous, of one shape.

    `negative`: some may count from the end.
    """
    if len(indices) == 1 and steps[0] == 1 and not negative:
        return indices[0]
    made = engine.alloc(indices[0].shape, formats.INT64)
    if not made.size:
        return made
    kernel = moving(engine, "places")
    for number, (index, size, step) in enumerate(zip(indices, sizes, steps, strict=True)):
        first = int(number == 0)
        spread(engine, kernel, made.size, made, index, made.size, size, step, first)
    return made


# ---- reading


def taken(
    engine: OpenCLEngine, array: Array, at: int, indices: Sequence[Array], negative: bool = True
) -> Array:
    """What indices choose of the dimensions from `at` on; they are checked already."""
    last, chosen = at + len(indices), indices[0].shape
    shape = (*array.shape[:at], *chosen, *array.shape[last:])
    made = engine.alloc(shape, array.dtype)
    if not made.size:
        return made
    one = lines(engine, array, at, last)
    place = places(engine, indices, array.shape[at:last], one.steps, negative)
    spread(
        engine, moving(engine, "take", word(one.array)), one.outer * place.size,
        made, one.array, place, one.outer, place.size, one.inner, one.outer_step, one.inner_step,
        numbers=one.outer * place.size * one.inner,
    )  # fmt: skip
    return made


# ---- writing and adding


class Values(NamedTuple):
    """Values as [outer, places, inner], with steps that may be 0."""

    array: Array
    outer: int
    place: int
    inner: int


def _values(engine: OpenCLEngine, array: Array, first: int, last: int) -> Values:
    """Values whose dimensions `first` to `last - 1` are the places."""
    found = [
        as_one(array.shape[part], array.steps[part])
        for part in (slice(0, first), slice(first, last), slice(last, None))
    ]
    if None in found:
        return _values(engine, fresh(engine, array), first, last)
    return Values(array, *(one[1] for one in found if one is not None))


def written(engine: OpenCLEngine, out: Array, at: int, place: Any, values: Array) -> None:
    """Write values into `out`, in place: indices of the dimensions from `at` on say where."""
    if not values.size:
        return
    one = lines(engine, out, at, at + len(place))
    chosen = places(engine, place, out.shape[at : at + len(place)], one.steps)
    given = _values(engine, bits(values), at, at + place[0].ndim)
    _put(engine, one, chosen, given)


def _put(engine: OpenCLEngine, one: Lines, place: Array, given: Values) -> None:
    kernel = moving(engine, "put", word(one.array))
    numbers = one.outer * place.size * one.inner
    spread(
        engine, kernel, numbers, one.array, given.array, place, one.outer, place.size, one.inner,
        one.outer_step, one.inner_step, given.outer, given.place, given.inner,
    )  # fmt: skip


def met(
    engine: OpenCLEngine, out: Array, at: int, place: Any, values: Array, how: str = "add"
) -> None:
    """Add values to `out`, in place, or let them meet in another way, though places may repeat."""
    if not values.size:
        return
    one = lines(engine, out, at, at + len(place))
    chosen = places(engine, place, out.shape[at : at + len(place)], one.steps)
    given = _values(engine, values, at, at + place[0].ndim)
    _meet(engine, one._replace(array=out), chosen, given, how)


def _meet(engine: OpenCLEngine, one: Lines, place: Array, given: Values, how: str) -> None:
    kind, count = one.array.dtype, place.size
    if kind == formats.FLOAT64 and not engine.has_double:
        raise NotHere("no float64 on this device")
    how = "or" if kind == formats.BOOL and how == "add" else how
    args = (
        one.array, given.array, place, one.outer, count, one.inner, one.outer_step,
        one.inner_step, given.outer, given.place, given.inner,
    )  # fmt: skip
    if engine.mapping == "cpu":
        rows = one.outer * one.inner
        each = max(16, -(-rows // (engine.units * 4)))
        kernel = computing(engine, "meet", kind, OP=how)
        engine.launch(kernel, (-(-rows // each),), (1,), *args, each)
        return
    group = engine.group
    size = min(-(-one.outer * count * one.inner // group), 1 << 16) * group
    if how == "add" and kind == formats.FLOAT32 and count > _MANY:
        engine.launch(moving(engine, "add_atomic"), (size,), (group,), *args)
        return
    from holdfast.compute.engines.opencl.sorting import order

    ranked = order(engine, place.viewed(place.dtype, (1, count)))
    kernel = computing(engine, "meet_sorted", kind, OP=how)
    engine.launch(kernel, (size,), (group,), *args[:3], ranked, *args[3:])


def summed(engine: OpenCLEngine, one: Array, other: Array) -> Array:
    """The sum of two arrays of one shape and format, written into the first."""
    kind = working(one.dtype)
    given = [elementwise.Input("one", one, kind), elementwise.Input("other", other, kind)]
    text = "$one | $other" if one.dtype == formats.BOOL else "$one + $other"
    return elementwise.compute(engine, text, given, [], one)


def scaled(engine: OpenCLEngine, array: Array, kind: Any, factor: Any) -> Array:
    """In another format, times a number."""
    if factor == 1 or kind == formats.BOOL:
        return engine.cast(array, kind)
    type = working(kind)
    number = elementwise.Number("factor", numpy.asarray(factor).astype(kind)[()], type)
    made = engine.like(array, kind)
    given = elementwise.Input("self", array, type)
    return elementwise.compute(engine, "$self * $factor", [given], [number], made)
