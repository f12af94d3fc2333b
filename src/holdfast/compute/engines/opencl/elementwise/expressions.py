"""Pointwise ops as C expressions: the table, and calling an op.

The expressions are in `arithmetic`, `comparison`, `activation` and `special`. Those for floats are
written so that they also work on vectors: see `codegen`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.codegen import NAME, TRUTH, Read, Step
from holdfast.compute.engines.opencl.elementwise.strided_kernels import (
    Chain,
    Input,
    Launch,
    Number,
    alloc_result,
    layout_key,
    prepare_launch,
    remember,
    to_argument,
)
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere, broadcast_shape
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import register, storage, working
from holdfast.compute.ops import rules
from holdfast.compute.ops.table import OPS, Op

# One text for all dtypes; or a text by kind: "f" (floats), "i" (signed integers), "u" (unsigned
# ones, "i" if missing), "b" (booleans); or a function of the bound arguments and the dtype, which
# may raise what the NumPy engine's kernel raises.
Text = str | dict[str, str] | Callable[[dict[str, Any], numpy.dtype[Any]], str | None]

EXPRESSIONS: dict[str, Text] = {}
FIXED: set[Op] = set()  # ops whose text depends on the values of their scalars
_ndarray = numpy.ndarray


def add(texts: dict[str, Text], fixed: bool = False) -> None:
    """Register expressions as the kernels of ops.

    `fixed`: the text depends on the values of the scalar arguments.
    """
    for name, text in texts.items():
        EXPRESSIONS[name] = text
        register(name, _make_kernel(OPS[name]))
    if fixed:
        FIXED.update(OPS[name] for name in texts)


def for_overloads(names: str, overloads: str, text: Text) -> dict[str, Text]:
    """The same expression for several ops: every name with every overload ("-" for none)."""
    return {
        name if overload == "-" else f"{name}.{overload}": text
        for name in names.split()
        for overload in overloads.split()
    }


def _make_kernel(op: Op) -> Callable[..., Any]:
    def compute(engine: CLEngine, *args: Any, **kwargs: Any) -> Any:
        return run(engine, op, args, kwargs)

    return compute


def expression_of(op: Op, bound: dict[str, Any], kind: numpy.dtype[Any]) -> tuple[str, bool]:
    """The expression of an op for a dtype, and whether it also works on vectors.

    Raises NotHere if there is none.
    """
    text = EXPRESSIONS.get(op.name)
    if callable(text):
        text = text(bound, kind)
    letter = letter_of(kind)
    if isinstance(text, dict):
        text = text.get(letter, text.get("i") if letter == "u" else None)
    if text is None:
        raise NotHere(f"{op.name} of {kind}")
    return text, letter == "f"


def letter_of(kind: numpy.dtype[Any]) -> str:
    """ "f", "i", "u" or "b"; dtypes that NumPy lacks are floats."""
    return kind.kind if kind.kind in "iub" else "f"


# ---- calling an op


class PointwisePlan(NamedTuple):
    """A prepared call of an op.

    `arrays` and `numbers` name the arguments that go to the kernel: the index of a positional one,
    or a name; a number comes with its conversion.
    """

    launch: Launch | None
    nbytes: int
    kind: numpy.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    arrays: tuple[Any, ...]
    numbers: tuple[tuple[Any, Callable[[Any], Any]], ...]


def run(engine: CLEngine, op: Op, args: Any, kwargs: Any) -> Array:
    """Compute a pointwise op. Raises NotHere if it has no expression."""
    key = _key(engine, op, args, kwargs)
    if key is None:
        args = [engine.to_device(a) for a in args]
        kwargs = {name: engine.to_device(value) for name, value in kwargs.items()}
        key = _key(engine, op, args, kwargs)
    plan = engine.plans.get(key)
    if plan is None:
        plan = remember(engine, key, _prepare_plan(engine, op, args, kwargs))
    launch, nbytes, kind, shape, strides, arrays, numbers = plan
    out = Array(engine, engine.memories.make(nbytes), kind, shape, strides)
    if launch is not None:
        given = [out]
        for at in arrays:
            given.append(args[at] if type(at) is int else kwargs[at])
        for at, convert in numbers:
            given.append(convert(args[at] if type(at) is int else kwargs.get(at)))
        engine.launch(launch.kernel, launch.size, launch.group, *given, *launch.sizes)
    return out


def _key(engine: CLEngine, op: Op, args: Any, kwargs: Any) -> Any:
    """The cache key of a call; None if an argument must be uploaded first."""
    parts: list[Any] = [op]
    by_value = op in FIXED
    for value in args if not kwargs else (*args, *kwargs, *kwargs.values()):
        kind = type(value)
        if kind is Array:
            if value.engine is not engine:
                return None
            parts.append(layout_key(engine, value))
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


def _prepare_plan(engine: CLEngine, op: Op, args: Any, kwargs: Any) -> PointwisePlan:
    bound = op.schema.bind(args, kwargs)
    among, computed = rules.find_promotion(op, bound)
    if computed.kind == "c" or (computed == dtypes.FLOAT64 and not engine.has_double):
        raise NotHere(f"{op.name} of {computed}")
    kind = dtypes.working(computed) if op.rule.widen else computed
    text, wide = expression_of(op, bound, kind)
    inputs, numbers = operands(op, bound, among, kind, text)
    shape = broadcast_shape([i.array.shape for i in inputs])
    wanted = rules.result_dtype(op.rule.kind, computed)
    out = alloc_result(engine, [i.array for i in inputs], shape, wanted)
    places = {p.name: n if n < len(args) else p.name for n, p in enumerate(op.schema.parameters)}
    launch = None
    if out.size:
        reads = tuple(Read(i.name, storage(i.array.dtype), i.type) for i in inputs)
        steps = (Step("out", text, op.rule.kind == "bool"),)
        pairs = tuple((n.name, n.type) for n in numbers)
        chain = Chain(working(kind), reads, pairs, steps, ("out",), wide=wide)
        launch = prepare_launch(engine, chain, [out], [i.array for i in inputs])
    converts = [(places[n.name], _converter(n, bound[n.name])) for n in numbers]
    return PointwisePlan(
        *(launch, out.nbytes, wanted, shape, out.strides),
        *(tuple(places[i.name] for i in inputs), tuple(converts)),
    )


def operands(
    op: Op, bound: Any, among: Any, kind: numpy.dtype[Any], text: str
) -> tuple[list[Input], list[Number]]:
    """The arrays and the scalars that an op's expression reads."""
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
        own = kind if name in among else dtypes.working(value.dtype)
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
    """How later calls pass a scalar; None stands for its default."""
    if isinstance(given, _ndarray):
        return lambda value: to_argument(value.item(), number.type)
    default = to_argument(number.value, number.type)
    if number.type == "float":
        return lambda value: default if value is None else float(value)
    return lambda value: default if value is None else to_argument(value, number.type)
