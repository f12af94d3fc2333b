"""Reductions of expressions: kernels generated for what is joined, over any dimensions.

Covers: the layout of a reduction, how it is shared out, two stages where there are few results.
Leaves to others: ops (`reduce` and others), the kernels' text (`reducing_text`, kernels/reduce.cl).
Promise: no array is copied; any formats and strides. Sums of float32 are folded into float64 every
32 numbers, where the device has it. NaN wins among extremes; of equal ones the first counts.

An expression is C in which `$name` is an input or a number, as in `elementwise`; `$index` is which
of the reduced numbers is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl.array import Array, NotHere, c_strides, collapsed
from holdfast.compute.engines.opencl.elementwise import (
    Input,
    Launch,
    Number,
    layout,
    passed,
    remember,
)
from holdfast.compute.engines.opencl.kernels import storage
from holdfast.compute.engines.opencl.reducing_text import State, text_of

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_WIDTH = 1024  # as in reduce.cl
_LEAST = 16384  # numbers that are worth a work-item on CPUs
_FORMATS = {
    "uchar": numpy.dtype(numpy.uint8),
    "int": numpy.dtype(numpy.int32),
    "long": formats.INT64,
    "ulong": numpy.dtype(numpy.uint64),
    "float": formats.FLOAT32,
    "double": formats.FLOAT64,
}


class Part(NamedTuple):
    """One result: numbers `value` of a C type, joined by `fold`.

    `out` has the kept dimensions alone; `finish` is what is written of `$total`. `place` gets the
    index of an extreme among the reduced numbers; `told` is an expression for that index, where it
    is not the number's own.
    """

    fold: str
    value: str
    type: str
    out: Array | None
    finish: str = "$total"
    place: Array | None = None
    told: str = ""


class _Layout(NamedTuple):
    """Sizes of kept and reduced dimensions, and steps of each array along them."""

    kept: list[int]
    reduced: list[int]
    steps: list[tuple[list[int], list[int]]]  # of inputs: along kept, along reduced
    outs: list[list[int]]


class _Share(NamedTuple):
    """How work is shared out: the kernel's own arguments, global size (with chunks), group."""

    arguments: tuple[int, ...]
    size: tuple[int, int]
    group: tuple[int, int]


class _Plan(NamedTuple):
    """What a call comes to: in `chunks`, whose states are joined where there are several."""

    launch: Launch
    chunks: int
    layout: _Layout


def reduce(
    engine: OpenCLEngine,
    parts: Sequence[Part],
    inputs: Sequence[Input],
    numbers: Sequence[Number],
    shape: tuple[int, ...],
    over: tuple[int, ...],
) -> None:
    """Join expressions of arrays, which broadcast to `shape`, over dimensions. Raises NotHere."""
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    if not math.prod(n for d, n in enumerate(shape) if d not in over):
        return
    key = (
        *("reduce", shape, over, *(layout(engine, out) for out in outs)),
        *(
            (p.fold, p.value, p.type, p.finish, p.out is None, p.place is None, p.told)
            for p in parts
        ),
        *((i.name, i.type, layout(engine, i.array)) for i in inputs),
        *((n.name, n.type) for n in numbers),
    )
    plan = engine.plans.get(key)
    if plan is None:
        plan = remember(engine, key, _plan(engine, parts, inputs, numbers, shape, over))
    if plan.chunks == 1:
        _launch(engine, plan.launch, inputs, outs, numbers)
        return
    # Few results of many numbers: chunks first, then the chunks' states.
    first, states = _states(engine, parts, plan.chunks, plan.layout)
    _launch(engine, plan.launch, inputs, states, numbers)
    second, again = _joined(parts, first, plan.layout)
    reduce(engine, second, again, numbers, (plan.chunks, *plan.layout.kept), (0,))


def _launch(
    engine: OpenCLEngine, ready: Launch, inputs: Sequence[Input], outs: Any, numbers: Any
) -> None:
    values = [passed(n.value, n.type) for n in numbers]
    arrays = [i.array for i in inputs]
    engine.launch(ready.kernel, ready.size, ready.group, *arrays, *outs, *values, *ready.sizes)


def _plan(
    engine: OpenCLEngine, parts: Any, inputs: Any, numbers: Any, shape: Any, over: Any
) -> _Plan:
    if not engine.has_double and "double" in (*(p.type for p in parts), *(i.type for i in inputs)):
        raise NotHere("no float64 on this device")
    spread = [i._replace(array=i.array.broadcast_to(shape)) for i in inputs]
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    ranked = any(p.place is not None or p.told or "$index" in p.value for p in parts)
    found = _laid_out(shape, over, [i.array for i in spread], outs, ranked)
    beside = _is_beside(found)
    way = "GROUPS" if engine.mapping == "gpu" else "COLUMNS" if beside else "ROWS"
    share = _SHARES[way](engine, found, beside)
    chunks = share.size[1]
    if chunks == 1:
        return _Plan(_ready(engine, found, share, way, beside, parts, spread, numbers), 1, found)
    first, states = _states(engine, parts, chunks, found)
    flat = found._replace(outs=[list(c_strides(tuple(found.kept), 1)) for _ in states])
    ready = _ready(engine, flat, share, way, beside, first, spread, numbers)
    return _Plan(ready, chunks, found)


# ---- layout


def _laid_out(
    shape: tuple[int, ...],
    over: tuple[int, ...],
    inputs: list[Array],
    outs: list[Array],
    ranked: bool,
) -> _Layout:
    steps = [a.steps for a in inputs]
    weight = [max((abs(s[d]) for s in steps), default=0) for d in range(len(shape))]
    kept = [d for d in range(len(shape)) if d not in over]
    along = {d: [o.steps[place] for o in outs] for place, d in enumerate(kept)}
    kept = sorted((d for d in kept if shape[d] != 1), key=lambda d: -weight[d])
    reduced = [d for d in range(len(shape)) if d in over and shape[d] != 1]
    if not ranked:  # a place counts in the order of the dimensions
        reduced.sort(key=lambda d: -weight[d])
    kept_sizes, kept_steps = _collapsed(
        shape,
        kept,
        [
            *([s[d] for d in kept] for s in steps),
            *([along[d][o] for d in kept] for o in range(len(outs))),
        ],
    )
    sizes, reduced_steps = _collapsed(shape, reduced, [[s[d] for d in reduced] for s in steps])
    if 0 in sizes:
        sizes, reduced_steps = [0], [[1] for _ in inputs]
    many = len(inputs)
    return _Layout(
        kept_sizes,
        sizes,
        list(zip(kept_steps[:many], reduced_steps, strict=True)),
        kept_steps[many:],
    )


def _collapsed(
    shape: Any, dims: list[int], steps: list[list[int]]
) -> tuple[list[int], list[list[int]]]:
    """As `array.collapsed`, of some dimensions; one at least is left."""
    sizes, made = collapsed([shape[d] for d in dims], steps)
    return (sizes, made) if sizes else ([1], [[0] for _ in steps])


def _is_beside(layout: _Layout) -> bool:
    """Whether kept numbers lie closer together than reduced ones, in the arrays that have both."""
    if layout.kept[-1] == 1 or layout.reduced[-1] == 1:
        return layout.reduced[-1] == 1 < layout.kept[-1]
    votes = 0
    for kept, reduced in layout.steps:
        one, other = abs(kept[-1]), abs(reduced[-1])
        if one and other and one != other:
            votes += 1 if one < other else -1
    return votes > 0


# ---- sharing out: chunks, numbers in each, extra arguments, global size, group


def _cut(reduced: int, chunks: int) -> tuple[int, int]:
    """How many chunks there are when they are equal, and how long they are."""
    chunk = -(-reduced // max(chunks, 1)) or 1
    return -(-reduced // chunk) or 1, chunk


def _share_rows(engine: OpenCLEngine, layout: _Layout, beside: bool) -> _Share:
    outs, reduced = math.prod(layout.kept), math.prod(layout.reduced)
    items = engine.units * 4
    chunks = 1
    if outs < items:
        chunks = min(items // outs, max(outs * reduced // _LEAST // outs, 1))
    chunks, chunk = _cut(reduced, chunks)
    each = max(-(-outs // items), min(-(-_LEAST // max(reduced, 1)), outs))
    arguments = (each, chunk, outs, reduced, layout.reduced[-1])
    return _Share(arguments, (-(-outs // each), chunks), (1, 1))


def _share_columns(engine: OpenCLEngine, layout: _Layout, beside: bool) -> _Share:
    reduced, width = math.prod(layout.reduced), layout.kept[-1]
    blocks = -(-width // _WIDTH)
    rows = math.prod(layout.kept[:-1]) * blocks
    chunks = 1
    if rows < engine.units * 4:
        worth = reduced * min(width, _WIDTH) // _LEAST
        chunks = max(min(engine.units * 4 // rows, worth), 1)
    chunks, chunk = _cut(reduced, chunks)
    return _Share((blocks, chunk, width, reduced), (rows, chunks), (1, 1))


def _share_groups(engine: OpenCLEngine, layout: _Layout, beside: bool) -> _Share:
    outs, reduced = math.prod(layout.kept), math.prod(layout.reduced)
    group = engine.group
    if beside:
        lanes = max(group // 32, 1)
        while lanes < group and group // lanes > layout.kept[-1]:
            lanes *= 2
    else:
        lanes = group
    while lanes > 1 and lanes * 2 > reduced:
        lanes //= 2
    groups = -(-outs // (group // lanes))
    # Enough groups to fill the device, but 8 numbers at least for each work-item.
    chunks = max(min(engine.units * 8 // groups, reduced // (lanes * 8)), 1)
    chunks, chunk = _cut(reduced, chunks)
    return _Share((lanes, chunk, outs, reduced), (groups * group, chunks), (group, 1))


_SHARES = {"ROWS": _share_rows, "COLUMNS": _share_columns, "GROUPS": _share_groups}


# ---- two stages


def _wide(engine: OpenCLEngine, part: Part) -> str:
    """The C type in which a part is folded."""
    return (
        "double" if part.type == "float" and part.fold == "sum" and engine.has_double else part.type
    )


def _states(engine: OpenCLEngine, parts: Sequence[Part], chunks: int, layout: _Layout) -> Any:
    """The parts again, whose results are states of chunks; and the arrays of those."""
    made, arrays = [], []
    for part in parts:
        shape = (chunks, *layout.kept)
        state = engine.alloc(shape, _FORMATS[_wide(engine, part)])
        place = None if part.place is None and not part.told else engine.alloc(shape, formats.INT64)
        made.append(part._replace(out=state, finish="$total", place=place))
        arrays += [a for a in (state, place) if a is not None]
    return made, arrays


def _joined(parts: Sequence[Part], first: Sequence[Part], layout: _Layout) -> Any:
    """Parts that join the states of chunks, and the inputs they read."""
    second, inputs = [], []

    def ordered(array: Array | None, steps: list[int]) -> Array | None:
        if array is None:
            return None
        strides = tuple(s * array.itemsize for s in steps)
        return array.viewed(array.dtype, tuple(layout.kept), strides)

    steps = iter(layout.outs)
    for number, (part, state) in enumerate(zip(parts, first, strict=True)):
        held: Any = state.out
        kind = next(c for c, f in _FORMATS.items() if f == held.dtype)
        inputs.append(Input(f"state{number}", held, kind))
        out = ordered(part.out, next(steps)) if part.out is not None else None
        place = ordered(part.place, next(steps)) if part.place is not None else None
        index = ""
        if state.place is not None:
            inputs.append(Input(f"place{number}", state.place, "long"))
            index = f"$place{number}"
        second.append(Part(part.fold, f"$state{number}", kind, out, part.finish, place, index))
    return second, inputs


# ---- the kernel


def _ready(
    engine: OpenCLEngine, found: _Layout, share: _Share, way: str, beside: bool, parts: Any,
    inputs: Sequence[Input], numbers: Sequence[Number],
) -> Launch:  # fmt: skip
    """The kernel of a layout, with its sizes."""
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    results = math.prod(found.kept)
    spans = [results * math.prod(found.reduced), *(i.array.span for i in inputs)]
    # Half of what an int holds: loops may look some steps beyond the end.
    large = max(*spans, *(out.span for out in outs)) >= 2**30
    text = text_of(
        way,
        beside,
        tuple((i.name, storage(i.array.dtype), i.type) for i in inputs),
        tuple((n.name, n.type) for n in numbers),
        tuple(_described(engine, part) for part in parts),
        tuple(_inner(way, one) for one in found.steps),
        (len(found.kept), len(found.reduced)),
        "long" if large else "int",
        engine.group,
    )
    steps = [s for kept, reduced in found.steps for s in (*kept, *reduced)]
    steps += [s for one in found.outs for s in one]
    per_chunk = results if share.size[1] > 1 else 0
    sizes = (*share.arguments, per_chunk, *found.kept, *found.reduced, *steps)
    return Launch(engine.generated(text, "reduce"), share.size, share.group, sizes)


def _described(engine: OpenCLEngine, part: Part) -> State:
    return State(
        part.fold,
        part.value,
        part.type,
        _wide(engine, part),
        part.finish,
        part.told,
        part.place is not None or bool(part.told),
        *(None if a is None else storage(a.dtype) for a in (part.out, part.place)),
    )


def _inner(way: str, steps: tuple[list[int], list[int]]) -> int:
    """The step that the innermost loop takes: 0, 1 or another (2)."""
    step = steps[0][-1] if way == "COLUMNS" else steps[1][-1]
    return step if 0 <= step <= 1 else 2
