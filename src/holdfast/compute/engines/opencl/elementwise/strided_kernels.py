"""Elementwise kernels over strided arrays, generated from expressions and launched.

Inputs and outputs may have any dtypes and strides; narrow floats are computed in float32 and
rounded once. A kernel is generated once for each expression, dtypes and kind of layout; the
launch of a call is prepared once for each op, dtypes, shapes and strides.

An expression is C in which `$name` is an argument, cast to the dtype that is computed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from holdfast.compute.engines.opencl.elementwise import codegen
from holdfast.compute.engines.opencl.elementwise.codegen import TRUTH, Form, Read, Step
from holdfast.compute.engines.opencl.runtime.array import Array, collapse_dims
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import storage, working

_LEAST = 4096  # elements that make a work-item worthwhile on CPUs
_PARTS = 4  # work-items per unit of a CPU, to balance the load
_WORTH = 32  # row length from which vectors pay, although the rest goes one by one
_PLANS = 4096  # prepared calls that are kept


class Input(NamedTuple):
    """An array that an expression reads, and the C type it is read as."""

    name: str
    array: Array
    type: str


class Number(NamedTuple):
    """A scalar that an expression reads, passed when the kernel is called."""

    name: str
    value: Any
    type: str


def inputs_of(type: str, **arrays: Array | None) -> list[Input]:
    """Inputs of an expression by name, without those that are None."""
    return [Input(name, array, type) for name, array in arrays.items() if array is not None]


def compute(
    engine: CLEngine, expression: str, inputs: Sequence[Input], numbers: Sequence[Number],
    out: Array, helpers: str = "", wide: bool = False,
) -> Array:  # fmt: skip
    """Write an expression of arrays, which broadcast to `out`, into `out`.

    `wide`: the expression also works on vectors (see `codegen`).
    """
    if not out.size:
        return out
    arrays = [i.array for i in inputs]
    key = (
        *(expression, helpers, wide, layout_key(engine, out)),
        *((i.name, i.type, layout_key(engine, i.array)) for i in inputs),
        *((n.name, n.type) for n in numbers),
    )
    launch = engine.plans.get(key)
    if launch is None:
        chain = _single_step_chain(expression, inputs, numbers, out, helpers, wide)
        launch = remember(engine, key, prepare_launch(engine, chain, [out], arrays))
    values = [to_argument(n.value, n.type) for n in numbers]
    engine.launch(launch.kernel, launch.size, launch.group, out, *arrays, *values, *launch.sizes)
    return out


def _single_step_chain(
    expression: str, inputs: Any, numbers: Any, out: Array, helpers: str, wide: bool
) -> Chain:
    kind = next((i.type for i in inputs if i.type != TRUTH), working(out.dtype))
    reads = tuple(Read(i.name, storage(i.array.dtype), i.type) for i in inputs)
    pairs = tuple((n.name, n.type) for n in numbers)
    return Chain(kind, reads, pairs, (Step("out", expression),), ("out",), helpers, wide)


def to_argument(value: Any, kind: str) -> Any:
    """A scalar as a kernel argument: integers as 64 bits, wrapped around."""
    if kind == "float":
        return float(value)
    if kind == "double":
        return numpy.float64(value)
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- preparing a launch


class Chain(NamedTuple):
    """A computation without layouts: see `codegen.Form`."""

    type: str
    reads: tuple[Read, ...]
    numbers: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    helpers: str = ""
    wide: bool = False


class Launch(NamedTuple):
    """A kernel with its sizes; arrays and scalars are still to be added."""

    kernel: Any
    size: tuple[int, ...]
    group: Any
    sizes: tuple[int, ...]


def prepare_launch(
    engine: CLEngine, chain: Chain, outs: list[Array], inputs: list[Array]
) -> Launch:
    """The kernel and the sizes for arrays with these layouts; all results have one shape."""
    whole = outs[0].shape
    spread = [a if a.shape == whole else a.broadcast_to(whole) for a in inputs]
    arrays = [*outs, *spread]
    shape, steps = _collapse(whole, [a.steps for a in arrays])
    inner = tuple(one[-1] if abs(one[-1]) <= 1 else 2 for one in steps)
    writes = tuple(storage(out.dtype) for out in outs)
    mapping = engine.mapping
    width = _width(mapping, chain, writes, shape, inner, arrays) if chain.wide else 1
    large = max(outs[0].size, *(a.span for a in arrays)) > 2**31 - 1024
    form = Form(
        *(mapping, chain.type, width, chain.reads, chain.numbers, chain.steps, chain.results),
        *(writes, inner, len(shape), large, chain.helpers),
    )
    kernel = engine.kernel_from(codegen.text_of(form), "elementwise")
    count, group, extra = _grid(engine, shape, width)
    return Launch(kernel, count, group, (*extra, *shape, *(s for one in steps for s in one)))


def _width(
    mapping: str, chain: Chain, writes: Any, shape: list[int], inner: Any, arrays: list[Array]
) -> int:
    """How many elements are computed at once."""
    width = codegen.WIDTHS.get((mapping, chain.type), 1)
    if (
        not {0, 1}.issuperset(inner)
        or shape[-1] < _WORTH
        or not codegen.WIDE_WRITES.issuperset(writes)
    ):
        return 1
    if 0 in inner[: len(writes)] or not all(_is_wide(r, chain.type) for r in chain.reads):
        return 1
    if mapping == "gpu" and (len(shape) > 1 or any(a.offset % 16 for a in arrays)):
        return 1
    return width


def _is_wide(read: Read, kind: str) -> bool:
    if read.type == TRUTH:
        return read.word == "bool"
    return read.type == kind and read.word in codegen.WIDE_READS


def _grid(engine: CLEngine, shape: Sequence[int], width: int) -> tuple[Any, Any, tuple[int, ...]]:
    """Global size, group, and the extra argument: elements or rows per work-item."""
    total = math.prod(shape)
    if engine.mapping == "gpu":
        group = engine.group
        each = group * (width if width > 1 else codegen.EACH)
        return (-(-total // each) * group,), (group,), ()
    most = engine.units * _PARTS
    if len(shape) == 1:
        each = max(_LEAST, -(-total // most))
        each = -(-each // 64) * 64
        return (-(-total // each),), (1,), (each,)
    rows = total // shape[-1]
    each = max(-(-_LEAST // shape[-1]), -(-rows // most))
    return (-(-rows // each),), (1,), (each,)


def _collapse(
    sizes: tuple[int, ...], steps: list[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """As `array.collapse_dims`, with dimensions ordered by the first array's strides."""
    dims = sorted(range(len(sizes)), key=lambda d: -abs(steps[0][d]))
    shape, kept = collapse_dims([sizes[d] for d in dims], [[s[d] for d in dims] for s in steps])
    return (shape, kept) if shape else ([1], [[1] for _ in steps])


def remember(engine: CLEngine, key: Any, plan: Any) -> Any:
    """Keep a prepared call; returns it."""
    if len(engine.plans) >= _PLANS:
        engine.plans.clear()
    engine.plans[key] = plan
    return plan


def layout_key(engine: CLEngine, array: Array) -> Any:
    """The part of an array that a prepared call depends on."""
    # Vectors on a GPU must be aligned; memory itself always is.
    offset = array.offset % 16 if engine.mapping == "gpu" else 0
    return array.dtype.num, array.shape, array.strides, offset


def alloc_result(
    engine: CLEngine, inputs: list[Array], shape: tuple[int, ...], kind: numpy.dtype[Any]
) -> Array:
    """Memory for a result, with the dimension order of the first dense input of its shape."""
    for array in inputs:
        if array.shape == shape and array.is_dense:
            return engine.alloc_like(array, kind)
    return engine.alloc(shape, kind)
