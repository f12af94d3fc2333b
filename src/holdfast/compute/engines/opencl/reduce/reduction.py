"""Reductions of expressions over any dimensions, with generated kernels.

No array is copied; any dtypes and strides. float32 sums are folded into float64 every 32 elements
if the device has it. For extremes NaN wins, and the first of equal elements counts. Few results of
many elements take two stages.

An expression is C in which `$name` is an input or a scalar, as in `strided_kernels`; `$index` is
the index among the reduced elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.strided_kernels import (
    Input,
    Launch,
    Number,
    layout_key,
    remember,
    to_argument,
)
from holdfast.compute.engines.opencl.reduce.codegen import FoldSpec, text_of
from holdfast.compute.engines.opencl.runtime.array import Array, c_strides, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import check_double, storage

_WIDTH = 1024  # as in reduce.cl
_LEAST = 16384  # elements that make a work-item worthwhile on CPUs
_FORMATS = {
    "uchar": numpy.dtype(numpy.uint8),
    "int": numpy.dtype(numpy.int32),
    "long": dtypes.INT64,
    "ulong": numpy.dtype(numpy.uint64),
    "float": dtypes.FLOAT32,
    "double": dtypes.FLOAT64,
}


class ReduceOutput(NamedTuple):
    """One result: the expression `value`, computed in a C type and reduced by `fold`.

    `out` has the kept dimensions only; `finish` is the expression of `$total` that is written.
    `place` receives the index of an extreme among the reduced elements; `index_from` is an
    expression for that index if it is not the element's own.
    """

    fold: str
    value: str
    type: str
    out: Array | None
    finish: str = "$total"
    place: Array | None = None
    index_from: str = ""


class _Layout(NamedTuple):
    """Sizes of kept and reduced dimensions, and the steps of each array along them."""

    kept: list[int]
    reduced: list[int]
    steps: list[tuple[list[int], list[int]]]  # of inputs: along kept, along reduced
    outs: list[list[int]]


class _WorkSplit(NamedTuple):
    """How work is split: the kernel's own arguments, global size (with chunks), group."""

    arguments: tuple[int, ...]
    size: tuple[int, int]
    group: tuple[int, int]


class _ReductionPlan(NamedTuple):
    """A prepared reduction in `chunks`; several chunks are joined by a second reduction."""

    launch: Launch
    chunks: int
    layout: _Layout


def reduce(
    engine: CLEngine, parts: Sequence[ReduceOutput], inputs: Sequence[Input],
    numbers: Sequence[Number], shape: tuple[int, ...], over: tuple[int, ...],
) -> None:  # fmt: skip
    """Reduce expressions of arrays, which broadcast to `shape`, over dimensions. Raises NotHere."""
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    if not math.prod(n for d, n in enumerate(shape) if d not in over):
        return
    key = (
        *("reduce", shape, over, *(layout_key(engine, out) for out in outs)),
        *(
            (p.fold, p.value, p.type, p.finish, p.out is None, p.place is None, p.index_from)
            for p in parts
        ),
        *((i.name, i.type, layout_key(engine, i.array)) for i in inputs),
        *((n.name, n.type) for n in numbers),
    )
    plan = engine.plans.get(key)
    if plan is None:
        plan = remember(engine, key, _plan(engine, parts, inputs, numbers, shape, over))
    if plan.chunks == 1:
        _launch(engine, plan.launch, inputs, outs, numbers)
        return
    # Few results of many elements: reduce chunks first, then the states of the chunks.
    first, states = _chunk_states(engine, parts, plan.chunks, plan.layout)
    _launch(engine, plan.launch, inputs, states, numbers)
    second, again = _join_chunks(parts, first, plan.layout)
    reduce(engine, second, again, numbers, (plan.chunks, *plan.layout.kept), (0,))


def _launch(
    engine: CLEngine, ready: Launch, inputs: Sequence[Input], outs: Any, numbers: Any
) -> None:
    values = [to_argument(n.value, n.type) for n in numbers]
    arrays = [i.array for i in inputs]
    engine.launch(ready.kernel, ready.size, ready.group, *arrays, *outs, *values, *ready.sizes)


def _plan(
    engine: CLEngine, parts: Any, inputs: Any, numbers: Any, shape: Any, over: Any
) -> _ReductionPlan:
    check_double(engine, *(p.type for p in parts), *(i.type for i in inputs))
    spread = [i._replace(array=i.array.broadcast_to(shape)) for i in inputs]
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    ranked = any(p.place is not None or p.index_from or "$index" in p.value for p in parts)
    found = _make_layout(shape, over, [i.array for i in spread], outs, ranked)
    beside = _is_beside(found)
    way = "GROUPS" if engine.mapping == "gpu" else "COLUMNS" if beside else "ROWS"
    share = _SPLITS[way](engine, found, beside)
    chunks = share.size[1]
    if chunks == 1:
        return _ReductionPlan(
            _prepare_launch(engine, found, share, way, beside, parts, spread, numbers), 1, found
        )
    first, states = _chunk_states(engine, parts, chunks, found)
    flat = found._replace(outs=[list(c_strides(tuple(found.kept), 1)) for _ in states])
    ready = _prepare_launch(engine, flat, share, way, beside, first, spread, numbers)
    return _ReductionPlan(ready, chunks, found)


# ---- layout


def _make_layout(
    shape: tuple[int, ...], over: tuple[int, ...], inputs: list[Array], outs: list[Array],
    ranked: bool,
) -> _Layout:  # fmt: skip
    steps = [a.steps for a in inputs]
    weight = [max((abs(s[d]) for s in steps), default=0) for d in range(len(shape))]
    kept = [d for d in range(len(shape)) if d not in over]
    along = {d: [o.steps[place] for o in outs] for place, d in enumerate(kept)}
    kept = sorted((d for d in kept if shape[d] != 1), key=lambda d: -weight[d])
    reduced = [d for d in range(len(shape)) if d in over and shape[d] != 1]
    if not ranked:  # an index counts in the order of the dimensions
        reduced.sort(key=lambda d: -weight[d])
    kept_sizes, kept_steps = _collapse(
        shape,
        kept,
        [
            *([s[d] for d in kept] for s in steps),
            *([along[d][o] for d in kept] for o in range(len(outs))),
        ],
    )
    sizes, reduced_steps = _collapse(shape, reduced, [[s[d] for d in reduced] for s in steps])
    if 0 in sizes:
        sizes, reduced_steps = [0], [[1] for _ in inputs]
    many = len(inputs)
    return _Layout(
        kept_sizes,
        sizes,
        list(zip(kept_steps[:many], reduced_steps, strict=True)),
        kept_steps[many:],
    )


def _collapse(
    shape: Any, dims: list[int], steps: list[list[int]]
) -> tuple[list[int], list[list[int]]]:
    """As `array.collapse_dims` for some dimensions; at least one is left."""
    sizes, made = collapse_dims([shape[d] for d in dims], steps)
    return (sizes, made) if sizes else ([1], [[0] for _ in steps])


def _is_beside(layout: _Layout) -> bool:
    """Whether kept elements are closer together than reduced ones, by majority of the arrays."""
    if layout.kept[-1] == 1 or layout.reduced[-1] == 1:
        return layout.reduced[-1] == 1 < layout.kept[-1]
    votes = 0
    for kept, reduced in layout.steps:
        one, other = abs(kept[-1]), abs(reduced[-1])
        if one and other and one != other:
            votes += 1 if one < other else -1
    return votes > 0


# ---- splitting the work


def _equal_chunks(reduced: int, chunks: int) -> tuple[int, int]:
    """The number of equal chunks, and their length."""
    chunk = -(-reduced // max(chunks, 1)) or 1
    return -(-reduced // chunk) or 1, chunk


def _split_rows(engine: CLEngine, layout: _Layout, beside: bool) -> _WorkSplit:
    outs, reduced = math.prod(layout.kept), math.prod(layout.reduced)
    items = engine.units * 4
    chunks = 1
    if outs < items:
        chunks = min(items // outs, max(outs * reduced // _LEAST // outs, 1))
    chunks, chunk = _equal_chunks(reduced, chunks)
    each = max(-(-outs // items), min(-(-_LEAST // max(reduced, 1)), outs))
    arguments = (each, chunk, outs, reduced, layout.reduced[-1])
    return _WorkSplit(arguments, (-(-outs // each), chunks), (1, 1))


def _split_columns(engine: CLEngine, layout: _Layout, beside: bool) -> _WorkSplit:
    reduced, width = math.prod(layout.reduced), layout.kept[-1]
    blocks = -(-width // _WIDTH)
    rows = math.prod(layout.kept[:-1]) * blocks
    chunks = 1
    if rows < engine.units * 4:
        worth = reduced * min(width, _WIDTH) // _LEAST
        chunks = max(min(engine.units * 4 // rows, worth), 1)
    chunks, chunk = _equal_chunks(reduced, chunks)
    return _WorkSplit((blocks, chunk, width, reduced), (rows, chunks), (1, 1))


def _split_groups(engine: CLEngine, layout: _Layout, beside: bool) -> _WorkSplit:
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
    # Enough groups to fill the device, but at least 8 elements for each work-item.
    chunks = max(min(engine.units * 8 // groups, reduced // (lanes * 8)), 1)
    chunks, chunk = _equal_chunks(reduced, chunks)
    return _WorkSplit((lanes, chunk, outs, reduced), (groups * group, chunks), (group, 1))


_SPLITS = {"ROWS": _split_rows, "COLUMNS": _split_columns, "GROUPS": _split_groups}


# ---- two stages


def _wide(engine: CLEngine, part: ReduceOutput) -> str:
    """The C type of the states of a part."""
    is_sum = part.type == "float" and part.fold == "sum"
    return "double" if is_sum and engine.has_double else part.type


def _chunk_states(
    engine: CLEngine, parts: Sequence[ReduceOutput], chunks: int, layout: _Layout
) -> Any:
    """The parts with the states of chunks as results, and the arrays of those."""
    made, arrays = [], []
    for part in parts:
        shape = (chunks, *layout.kept)
        state = engine.alloc(shape, _FORMATS[_wide(engine, part)])
        placed = part.place is not None or part.index_from
        place = engine.alloc(shape, dtypes.INT64) if placed else None
        made.append(part._replace(out=state, finish="$total", place=place))
        arrays += [a for a in (state, place) if a is not None]
    return made, arrays


def _join_chunks(
    parts: Sequence[ReduceOutput], first: Sequence[ReduceOutput], layout: _Layout
) -> Any:
    """Parts that join the states of chunks, and the inputs they read."""
    second, inputs = [], []

    def reorder(array: Array | None, steps: list[int]) -> Array | None:
        if array is None:
            return None
        strides = tuple(s * array.itemsize for s in steps)
        return array.view(array.dtype, tuple(layout.kept), strides)

    steps = iter(layout.outs)
    for number, (part, state) in enumerate(zip(parts, first, strict=True)):
        held: Any = state.out
        kind = next(c for c, f in _FORMATS.items() if f == held.dtype)
        inputs.append(Input(f"state{number}", held, kind))
        out = reorder(part.out, next(steps)) if part.out is not None else None
        place = reorder(part.place, next(steps)) if part.place is not None else None
        index = ""
        if state.place is not None:
            inputs.append(Input(f"place{number}", state.place, "long"))
            index = f"$place{number}"
        second.append(
            ReduceOutput(part.fold, f"$state{number}", kind, out, part.finish, place, index)
        )
    return second, inputs


# ---- the kernel


def _prepare_launch(
    engine: CLEngine, found: _Layout, share: _WorkSplit, way: str, beside: bool, parts: Any,
    inputs: Sequence[Input], numbers: Sequence[Number],
) -> Launch:  # fmt: skip
    """The kernel for a layout, with its sizes."""
    outs = [a for p in parts for a in (p.out, p.place) if a is not None]
    results = math.prod(found.kept)
    spans = [results * math.prod(found.reduced), *(i.array.span for i in inputs)]
    # Half of what an int holds: loops may run some steps beyond the end.
    large = max(*spans, *(out.span for out in outs)) >= 2**30
    text = text_of(
        way,
        beside,
        tuple((i.name, storage(i.array.dtype), i.type) for i in inputs),
        tuple((n.name, n.type) for n in numbers),
        tuple(_describe(engine, part) for part in parts),
        tuple(_inner(way, one) for one in found.steps),
        (len(found.kept), len(found.reduced)),
        "long" if large else "int",
        engine.group,
    )
    steps = [s for kept, reduced in found.steps for s in (*kept, *reduced)]
    steps += [s for one in found.outs for s in one]
    per_chunk = results if share.size[1] > 1 else 0
    sizes = (*share.arguments, per_chunk, *found.kept, *found.reduced, *steps)
    return Launch(engine.kernel_from(text, "reduce"), share.size, share.group, sizes)


def _describe(engine: CLEngine, part: ReduceOutput) -> FoldSpec:
    return FoldSpec(
        part.fold,
        part.value,
        part.type,
        _wide(engine, part),
        part.finish,
        part.index_from,
        part.place is not None or bool(part.index_from),
        *(None if a is None else storage(a.dtype) for a in (part.out, part.place)),
    )


def _inner(way: str, steps: tuple[list[int], list[int]]) -> int:
    """The step of the innermost loop: 0, 1 or another (2)."""
    step = steps[0][-1] if way == "COLUMNS" else steps[1][-1]
    return step if 0 <= step <= 1 else 2
