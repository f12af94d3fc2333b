"""Element by element over strided arrays: kernels generated from an expression.

Covers: calls of pointwise ops, and of any expression; promotion inside kernels.
Leaves to others: the expressions (`expressions`), the text of kernels (`texts`), copying
(`copying`), launching (the engine).
Promise: any formats and strides in, any strides out; narrow floats are computed in float32 and
rounded once. A kernel is generated once for each expression, set of formats and kind of layout, and
what a call comes to is worked out once for each op, formats, shapes and strides.

An expression is C in which `$name` is an argument of the op, in the format that is computed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import texts
from holdfast.compute.engines.opencl.array import Array, NotHere, collapsed, joint
from holdfast.compute.engines.opencl.kernels import storage, working
from holdfast.compute.engines.opencl.texts import NAME, TRUTH, Form, Read, Step
from holdfast.compute.ops import rules
from holdfast.compute.ops.table import Op

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_LEAST = 4096  # numbers that are worth a work-item on CPUs
_PARTS = 4  # work-items for each unit of a CPU: one that is late is made up for
_WORTH = 32  # numbers of a row from which several at once pay, although its rest goes one by one
_PLANS = 4096  # calls that are remembered
_ndarray = numpy.ndarray
FIXED: set[Op] = set()  # ops whose text depends on the numbers they are called with


class Input(NamedTuple):
    """An array that an expression reads, and the C type it is read as."""

    name: str
    array: Array
    type: str


class Number(NamedTuple):
    """A number that an expression reads, passed when the kernel is called."""

    name: str
    value: Any
    type: str


def inputs_of(type: str, **arrays: Array | None) -> list[Input]:
    """Inputs of an expression, by name; what is None is left out."""
    return [Input(name, array, type) for name, array in arrays.items() if array is not None]


def compute(
    engine: OpenCLEngine,
    expression: str,
    inputs: Sequence[Input],
    numbers: Sequence[Number],
    out: Array,
    helpers: str = "",
    wide: bool = False,
) -> Array:
    """Write an expression of arrays, which broadcast to `out`, into `out`.

    `wide`: the expression is fit for several numbers at once (see `texts`).
    """
    if not out.size:
        return out
    arrays = [i.array for i in inputs]
    key = (
        *(expression, helpers, wide, layout(engine, out)),
        *((i.name, i.type, layout(engine, i.array)) for i in inputs),
        *((n.name, n.type) for n in numbers),
    )
    launch = engine.plans.get(key)
    if launch is None:
        chain = _single(expression, inputs, numbers, out, helpers, wide)
        launch = remember(engine, key, prepared(engine, chain, [out], arrays))
    values = [passed(n.value, n.type) for n in numbers]
    engine.launch(launch.kernel, launch.size, launch.group, out, *arrays, *values, *launch.sizes)
    return out


def _single(
    expression: str, inputs: Any, numbers: Any, out: Array, helpers: str, wide: bool
) -> Chain:
    kind = next((i.type for i in inputs if i.type != TRUTH), working(out.dtype))
    reads = tuple(Read(i.name, storage(i.array.dtype), i.type) for i in inputs)
    pairs = tuple((n.name, n.type) for n in numbers)
    return Chain(kind, reads, pairs, (Step("out", expression),), ("out",), helpers, wide)


def passed(value: Any, kind: str) -> Any:
    """A number as an argument of a kernel: whole numbers go as 64 bits and are cut there."""
    if kind == "float":
        return float(value)
    if kind == "double":
        return numpy.float64(value)
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- launching an expression


class Chain(NamedTuple):
    """What is computed, without layouts: see `texts.Form`."""

    type: str
    reads: tuple[Read, ...]
    numbers: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    helpers: str = ""
    wide: bool = False


class Launch(NamedTuple):
    """A kernel with its sizes: what remains are arrays and numbers."""

    kernel: Any
    size: tuple[int, ...]
    group: Any
    sizes: tuple[int, ...]


def prepared(engine: OpenCLEngine, chain: Chain, outs: list[Array], inputs: list[Array]) -> Launch:
    """The kernel and the sizes for arrays that lie as these do; results have one shape."""
    whole = outs[0].shape
    spread = [a if a.shape == whole else a.broadcast_to(whole) for a in inputs]
    arrays = [*outs, *spread]
    shape, steps = _collapsed(whole, [a.steps for a in arrays])
    inner = tuple(one[-1] if abs(one[-1]) <= 1 else 2 for one in steps)
    writes = tuple(storage(out.dtype) for out in outs)
    mapping = engine.mapping
    width = _width(mapping, chain, writes, shape, inner, arrays) if chain.wide else 1
    large = max(outs[0].size, *(a.span for a in arrays)) > 2**31 - 1024
    form = Form(
        *(mapping, chain.type, width, chain.reads, chain.numbers, chain.steps, chain.results),
        *(writes, inner, len(shape), large, chain.helpers),
    )
    kernel = engine.generated(texts.text_of(form), "elementwise")
    count, group, extra = _grid(engine, shape, width)
    return Launch(kernel, count, group, (*extra, *shape, *(s for one in steps for s in one)))


def _width(
    mapping: str, chain: Chain, writes: Any, shape: list[int], inner: Any, arrays: list[Array]
) -> int:
    """How many numbers are computed at once."""
    width = texts.WIDTHS.get((mapping, chain.type), 1)
    if (
        not {0, 1}.issuperset(inner)
        or shape[-1] < _WORTH
        or not texts.WIDE_WRITES.issuperset(writes)
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
    return read.type == kind and read.word in texts.WIDE_READS


def _grid(
    engine: OpenCLEngine, shape: Sequence[int], width: int
) -> tuple[Any, Any, tuple[int, ...]]:
    """Global size, group, and the extra argument: what each work-item does."""
    total = math.prod(shape)
    if engine.mapping == "gpu":
        group = engine.group
        each = group * (width if width > 1 else texts.EACH)
        return (-(-total // each) * group,), (group,), ()
    most = engine.units * _PARTS
    if len(shape) == 1:
        each = max(_LEAST, -(-total // most))
        each = -(-each // 64) * 64
        return (-(-total // each),), (1,), (each,)
    rows = total // shape[-1]
    each = max(-(-_LEAST // shape[-1]), -(-rows // most))
    return (-(-rows // each),), (1,), (each,)


def _collapsed(
    sizes: tuple[int, ...], steps: list[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """As `array.collapsed`, ordered by the steps of the first array, the smallest last."""
    dims = sorted(range(len(sizes)), key=lambda d: -abs(steps[0][d]))
    shape, kept = collapsed([sizes[d] for d in dims], [[s[d] for d in dims] for s in steps])
    return (shape, kept) if shape else ([1], [[1] for _ in steps])


# ---- ops


class Plan(NamedTuple):
    """What a call of an op comes to.

    `arrays` and `numbers` say which arguments go to the kernel: a place among the positional ones
    or a name; a number with how it is passed.
    """

    launch: Launch | None
    nbytes: int
    kind: numpy.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    arrays: tuple[Any, ...]
    numbers: tuple[tuple[Any, Callable[[Any], Any]], ...]


def run(engine: OpenCLEngine, op: Op, args: Any, kwargs: Any) -> Array:
    """Compute a pointwise op of the table. Raises NotHere where it has no expression for it."""
    key = _key(engine, op, args, kwargs)
    if key is None:
        args = [engine.mine(a) for a in args]
        kwargs = {name: engine.mine(value) for name, value in kwargs.items()}
        key = _key(engine, op, args, kwargs)
    plan = engine.plans.get(key)
    if plan is None:
        plan = remember(engine, key, _plan(engine, op, args, kwargs))
    launch, nbytes, kind, shape, strides, arrays, numbers = plan
    out = Array(engine, engine.memories.make(nbytes), kind, shape, strides)
    if launch is not None:
        given = [out]
        for place in arrays:
            given.append(args[place] if type(place) is int else kwargs[place])
        for place, convert in numbers:
            given.append(convert(args[place] if type(place) is int else kwargs.get(place)))
        engine.launch(launch.kernel, launch.size, launch.group, *given, *launch.sizes)
    return out


def remember(engine: OpenCLEngine, key: Any, plan: Any) -> Any:
    """Keep what a call comes to; returns it."""
    if len(engine.plans) >= _PLANS:
        engine.plans.clear()
    engine.plans[key] = plan
    return plan


def layout(engine: OpenCLEngine, array: Array) -> Any:
    """What a plan depends on in an array."""
    # Vectors of a GPU must be aligned; memory itself always is.
    offset = array.offset % 16 if engine.mapping == "gpu" else 0
    return array.dtype.num, array.shape, array.strides, offset


def _key(engine: OpenCLEngine, op: Op, args: Any, kwargs: Any) -> Any:
    """What a plan depends on; None where an argument must be brought to the device first."""
    parts: list[Any] = [op]
    by_value = op in FIXED
    for value in args if not kwargs else (*args, *kwargs, *kwargs.values()):
        kind = type(value)
        if kind is Array:
            if value.engine is not engine:
                return None
            parts.append(layout(engine, value))
        elif kind is float or kind is int:
            parts.append((kind, value) if by_value else kind)
        elif kind is _ndarray:
            if value.ndim:
                return None
            parts.append((kind, value.dtype))
        elif kind is bool or kind is str or value is None:
            parts.append(value)
        else:
            parts.append((kind, repr(value)))
    return tuple(parts)


def _plan(engine: OpenCLEngine, op: Op, args: Any, kwargs: Any) -> Plan:
    from holdfast.compute.engines.opencl.expressions import expression_of

    bound = op.schema.bind(args, kwargs)
    among, computed = rules.promoted(op, bound)
    if computed.kind == "c" or (computed == formats.FLOAT64 and not engine.has_double):
        raise NotHere(f"{op.name} of {computed}")
    kind = formats.working(computed) if op.rule.widen else computed
    text, wide = expression_of(op, bound, kind)
    inputs, numbers = operands(op, bound, among, kind, text)
    shape = joint([i.array.shape for i in inputs])
    wanted = rules.result_format(op.rule.kind, computed)
    out = result(engine, [i.array for i in inputs], shape, wanted)
    places = {p.name: n if n < len(args) else p.name for n, p in enumerate(op.schema.parameters)}
    launch = None
    if out.size:
        reads = tuple(Read(i.name, storage(i.array.dtype), i.type) for i in inputs)
        steps = (Step("out", text, op.rule.kind == "bool"),)
        pairs = tuple((n.name, n.type) for n in numbers)
        chain = Chain(working(kind), reads, pairs, steps, ("out",), wide=wide)
        launch = prepared(engine, chain, [out], [i.array for i in inputs])
    converts = [(places[n.name], _converter(n, bound[n.name])) for n in numbers]
    return Plan(
        *(launch, out.nbytes, wanted, shape, out.strides),
        *(tuple(places[i.name] for i in inputs), tuple(converts)),
    )


def operands(
    op: Op, bound: Any, among: Any, kind: numpy.dtype[Any], text: str
) -> tuple[list[Input], list[Number]]:
    """What an op's expression reads: arrays, and numbers."""
    used = set(NAME.findall(text))
    inputs: list[Input] = []
    numbers: list[Number] = []
    for parameter in op.schema.parameters:
        name, value = parameter.name, bound[parameter.name]
        if name not in used:
            continue
        if not hasattr(value, "ndim"):
            numbers.append(_number(name, value, kind))
            continue
        own = kind if name in among else formats.working(value.dtype)
        if isinstance(value, _ndarray):
            numbers.append(_number(name, value.item(), own))
        else:
            truth = name not in among and value.dtype.kind == "b"
            inputs.append(Input(name, value, TRUTH if truth else working(own)))
    return inputs, numbers


def _number(name: str, value: Any, kind: numpy.dtype[Any]) -> Number:
    if isinstance(value, complex):
        raise NotHere("complex numbers")
    fraction = isinstance(value, float) and kind.kind in "iub"
    return Number(name, value, "float" if fraction else working(kind))


def _converter(number: Number, given: Any) -> Callable[[Any], Any]:
    """How later calls pass a number; one that a call leaves out has its default."""
    if isinstance(given, _ndarray):
        return lambda value: passed(value.item(), number.type)
    default = passed(number.value, number.type)
    if number.type == "float":
        return lambda value: default if value is None else float(value)
    return lambda value: default if value is None else passed(value, number.type)


def result(
    engine: OpenCLEngine, inputs: list[Array], shape: tuple[int, ...], kind: numpy.dtype[Any]
) -> Array:
    """Memory for a result, in the order of the first input of its shape that is dense."""
    for array in inputs:
        if array.shape == shape and array.is_dense:
            return engine.like(array, kind)
    return engine.alloc(shape, kind)
