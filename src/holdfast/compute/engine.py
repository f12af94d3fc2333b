"""The engine protocol and registry, and running an op on an engine's arrays.

An op runs as the engine's own kernel, else as its decomposition into other ops, else on the host
with NumPy. Host fallbacks are counted by op; `strict` forbids them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.base.registry import Entry, Registry
from holdfast.compute import dtype as dtypes
from holdfast.compute.ops import rules
from holdfast.compute.ops.schema import format_arguments
from holdfast.compute.ops.table import Op
from holdfast.compute.tensor_calls import tensor_calls

Array = Any  # an engine's own array: it has shape, dtype and ndim


class Engine(Protocol):
    """An engine has arrays of its own, and kernels by ATen name.

    A kernel takes the op's arguments in the order of its schema, with arrays for Tensor arguments
    (all of one dtype if the op is pointwise), after the check of the op's rule. It returns new
    arrays, or views where the schema says so, and never changes its arguments.
    """

    name: str
    kernels: Mapping[str, Callable[..., Any]]

    def on(self, index: int) -> Engine:
        """The engine of another device of the same kind; itself if there is only one device."""
        ...

    def alloc(self, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Array:
        """An uninitialized array."""
        ...

    def upload(self, array: numpy.ndarray[Any, Any]) -> Array:
        """Copy a host array."""
        ...

    def download(self, array: Array) -> numpy.ndarray[Any, Any]:
        """The elements as a host array; the array itself if it is on the host."""
        ...

    def cast(self, array: Array, dtype: numpy.dtype[Any]) -> Array:
        """Cast to another dtype; returns the same array if it has that dtype."""
        ...

    def write(self, array: Array, value: Array) -> None:
        """Copy elements into an array, which may be a view; both belong to this engine."""
        ...

    def call(self, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a kernel of this engine; memory pools, queues and streams hook in here."""
        ...


ENGINES: Registry[Engine] = Registry(
    "engine",
    {
        "numpy": Entry(
            "holdfast.compute.engines.numpy:engine", "NumPy, on any CPU", extra="compute"
        ),
        "opencl": Entry(
            "holdfast.compute.engines.opencl:engine",
            "OpenCL, on GPUs of any vendor and CPUs",
            extra="opencl",
        ),
        "torch": Entry(
            "holdfast.compute.engines.torch:engine", "torch, on CUDA devices", extra="torch"
        ),
    },
)


def engine_of(array: Array) -> Engine:
    """The engine that an array belongs to: NumPy for its arrays, else `array.engine`."""
    return ENGINES["numpy"] if isinstance(array, numpy.ndarray) else array.engine


fallbacks: Counter[tuple[str, str]] = Counter()  # (engine, op) -> calls on the host


@functools.cache
def _strict_by_setting() -> bool:
    return Config.load().strict


class strict(contextlib.ContextDecorator):
    """Forbid host fallbacks inside the block, in this thread; `strict(False)` allows them again."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self._before: list[bool | None] = []

    def __enter__(self) -> None:
        self._before.append(_mode.strict)
        _mode.strict = self.on

    def __exit__(self, *_: object) -> None:
        _mode.strict = self._before.pop()


class _Mode(threading.local):
    strict: bool | None = None  # None: as HOLDFAST_STRICT says


_mode: Any = _Mode()  # the torch device keeps it elsewhere: see `torch_device.strictness`


def is_strict() -> bool:
    """Whether host fallbacks are forbidden in this thread now."""
    return _strict_by_setting() if _mode.strict is None else _mode.strict


def count_fallback(engine: Engine, name: str) -> None:
    """Count an op that runs on the host. Raises Unsupported if that is forbidden."""
    if is_strict():
        raise Unsupported(
            f"engine {engine.name!r} has no kernel for {name}, and falling back is forbidden",
            expected="a native kernel, or a decomposition into ops that have one",
            hint="HOLDFAST_STRICT=0" if _mode.strict is None else "with strict(False): ...",
        )
    fallbacks[engine.name, name] += 1


def run(op: Op, engine: Engine, args: Any, kwargs: Any) -> Any:
    """Compute an op on arrays of `engine`. Raises BadInput that names the op and the shapes."""
    kernel = engine.kernels.get(op.name)
    try:
        if kernel is None and op.decomposition is not None:
            return tensor_calls.decompose(op, engine, args, kwargs)
        if kernel is None:
            return on_host(op, engine, args, kwargs)
        placed, named = _by_place(op, args, kwargs) if kwargs else (args, kwargs)
        if op.rule.check is not None:
            op.rule.check(*placed, **named)
        if op.rule.kind is not None:
            return _pointwise(op, engine, kernel, placed, named)
        return engine.call(kernel, placed, named)
    except HoldfastError:
        raise
    except MemoryError as exc:
        raise OutOfMemory(
            f"cannot compute {op.name}({format_arguments(args, kwargs)}): no memory for the result",
            expected="a result that fits into the memory of this machine",
            hint="fewer rows at a time",
        ) from exc
    except (ValueError, TypeError, IndexError, ArithmeticError, AttributeError) as exc:
        raise make_error(op, args, kwargs, exc) from exc


def _by_place(op: Op, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments that were passed by name at their place, as long as none is left out before."""
    placed, named = list(args), dict(kwargs)
    for parameter in op.schema.parameters[len(args) :]:
        if parameter.keyword or parameter.name not in named:
            break
        placed.append(named.pop(parameter.name))
    return placed, named


_READY = frozenset((dtypes.FLOAT32, dtypes.FLOAT64))


def _ready(op: Op, args: Any, kwargs: Any) -> numpy.dtype[Any] | None:
    """The common dtype of all arrays if it is float32 or float64 and nothing needs promotion, else
    None.
    """
    kind = None
    for value, parameter in zip(args, op.schema.parameters, strict=False):
        if hasattr(value, "ndim"):
            if kind is None:
                kind = value.dtype
            elif value.dtype != kind:
                return None
        elif type(value) is complex or (parameter.type == "Tensor" and value is not None):
            return None
    # A positional argument passed by name must be bound first.
    keywords = {p.name for p in op.schema.parameters if p.keyword} if kwargs else ()
    fits = all(name in keywords and not hasattr(v, "ndim") for name, v in kwargs.items())
    return kind if fits and kind in _READY else None


def _pointwise(op: Op, engine: Engine, kernel: Any, args: Any, kwargs: Any) -> Any:
    direct = getattr(engine, "pointwise", None)
    if direct is not None:  # its kernels promote
        return direct(op, args, kwargs)
    kind = _ready(op, args, kwargs)
    if kind is not None:
        out = engine.call(kernel, args, kwargs)
        # NumPy makes float64 of a scalar's logarithm, and of its products.
        off = op.rule.kind != "bool" and hasattr(out, "dtype") and out.dtype != kind
        return engine.cast(out, kind) if off else out
    bound = op.schema.bind(args, kwargs)
    among, computed = rules.find_promotion(op, bound)
    working = dtypes.working(computed) if op.rule.widen else computed
    for name in among:
        value = bound[name]
        if value is None:
            continue
        if hasattr(value, "ndim"):
            bound[name] = engine.cast(value, working)
        elif any(p.name == name and p.tensor for p in op.schema.parameters):
            bound[name] = engine.upload(numpy.asarray(value).astype(working))
    positional = [bound.pop(p.name) for p in op.schema.parameters if not p.keyword]
    out = engine.call(kernel, positional, bound)
    wanted = rules.result_dtype(op.rule.kind, computed)
    return out if isinstance(out, tuple) else engine.cast(out, wanted)


# Running statistics are changed although ATen's signature does not mark them.
_CHANGED = {"native_batch_norm": ("running_mean", "running_var")}


def on_host(op: Op, engine: Engine, args: Any, kwargs: Any) -> Any:
    """Compute an op on the host for another engine; counted, and forbidden if strict.

    Arrays that the op changes are changed on the engine too.
    """
    host = ENGINES["numpy"]
    if engine is host or (op.name not in host.kernels and op.decomposition is None):
        raise Unsupported(
            f"engine {engine.name!r} has no kernel for {op.name} and the op has no decomposition",
            expected="an op that `holdfast.compute.ops.OPS` has a kernel or a decomposition for",
        )
    count_fallback(engine, op.name)
    bound = op.schema.bind(args, kwargs)
    lowered = {name: each(value, _down) for name, value in bound.items()}
    positional = [lowered.pop(p.name) for p in op.schema.parameters if not p.keyword]
    out = run(op, host, positional, lowered)
    names = [p.name for p in op.schema.parameters if not p.keyword]
    lowered.update(zip(names, positional, strict=True))
    for parameter in op.schema.parameters:
        changed = parameter.name in _CHANGED.get(op.schema.base, ())
        if (changed or "!" in (parameter.alias or "")) and bound[parameter.name] is not None:
            engine.write(bound[parameter.name], lowered[parameter.name])
    return each(out, engine.upload)


def _down(array: Array) -> Any:
    """Copy an array of any engine to the host, into writable memory."""
    found = engine_of(array).download(array)
    return found if found.flags.writeable else found.copy()


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to every array in an argument or a result, which may be a list."""
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([each(v, function) for v in value])
    return value


def make_error(op: Op, args: Any, kwargs: Any, exc: Exception) -> BadInput:
    """The error for a call that raised `exc`."""
    return BadInput(
        f"cannot compute {op.name}({format_arguments(args, kwargs)}): {exc}",
        expected=op.rule.expects or op.schema.text,
    )
