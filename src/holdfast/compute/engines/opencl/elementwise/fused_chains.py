"""A recorded chain of pointwise ops (holdfast.compute.fusion.record) as one kernel.

Elements are float32 or boolean; inputs may have any dtype that is cast to float32 first, and may be
scalars on the host. Other chains run op by op. No intermediate value is written to memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise import strided_kernels
from holdfast.compute.engines.opencl.elementwise.codegen import NAME, TRUTH, Read, Step
from holdfast.compute.engines.opencl.elementwise.expressions import expression_of
from holdfast.compute.engines.opencl.runtime.array import Array, NotHere
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import storage
from holdfast.compute.engines.opencl.runtime.programs import BuildFailed
from holdfast.compute.ops.table import OPS

_TYPE = "float"
_WORDS = ("and", "or", "xor")
# Ops that also take booleans, and the ops that compute them then.
_LOGICAL = {
    **{name: OPS[name] for name in ("logical_not", *(f"logical_{word}" for word in _WORDS))},
    **{f"bitwise_{word}.Tensor": OPS[f"logical_{word}"] for word in _WORDS},
    "bitwise_not": OPS["logical_not"],
}


def fuse(
    engine: CLEngine, inputs: list[Any], steps: Sequence[Any], results: list[Any],
    hosted: Collection[Any] = (),
) -> Fused | None:  # fmt: skip
    """A kernel for recorded steps; None if they have to run one by one.

    `hosted` are the inputs that will be NumPy scalars.
    """
    try:
        return Fused(engine, *_Writer(inputs, steps, results, hosted).write())
    except (NotHere, HoldfastError, ValueError, TypeError, ArithmeticError):
        return None  # running the ops one by one raises the right error


class Fused:
    """One kernel for a chain: `run(tensors)`."""

    def __init__(
        self, engine: CLEngine, chain: strided_kernels.Chain, reads: list[int],
        numbers: list[float | int], results: list[Any],
    ) -> None:  # fmt: skip
        """`numbers` are float values, or indices (int) of inputs that are scalars."""
        self.engine, self.chain = engine, chain
        self._reads, self._numbers = reads, numbers
        self.shape = results[0].shape
        self._kinds = [result.dtype for result in results]
        self._is_broken = False

    def run(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The results for these inputs; None if the device cannot compute them in one kernel."""
        outs = self.try_arrays([t._array for t in tensors])
        if outs is None:
            return None
        wrap, device = type(tensors[0])._wrap, tensors[0].device
        return [wrap(out, device) for out in outs]

    def try_arrays(
        self, arrays: Sequence[Any], into: Sequence[Array | None] | None = None
    ) -> list[Array] | None:
        """`on_arrays`, or None if the device cannot."""
        if self._is_broken:
            return None
        try:
            return self.on_arrays(arrays, into)
        except NotHere:
            return None
        except BuildFailed:
            self._is_broken = True  # building is slow: try it once
            return None

    def on_arrays(
        self, arrays: Sequence[Any], into: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """`run` for arrays; writes results to the arrays in `into`. Raises NotHere or BuildFailed.

        An array in `into` may also be an input, unless its elements are read at other indices than
        they are written.
        """
        engine = self.engine
        given = [arrays[place] for place in self._reads]
        targets = [None] * len(self._kinds) if into is None else into
        outs = [
            engine.alloc(self.shape, kind) if target is None else target
            for kind, target in zip(self._kinds, targets, strict=True)
        ]
        key = self, *(None if a is None else strided_kernels.layout_key(engine, a) for a in targets)
        key = *key, *(strided_kernels.layout_key(engine, a) for a in given)
        launch = engine.plans.get(key)
        if launch is None:
            launch = strided_kernels.remember(engine, key, self._prepare(outs, given))
        numbers = [float(arrays[n].item()) if isinstance(n, int) else n for n in self._numbers]
        engine.launch(
            *(launch.kernel, launch.size, launch.group), *(*outs, *given, *numbers, *launch.sizes)
        )
        return outs

    def _prepare(self, outs: list[Array], given: list[Array]) -> strided_kernels.Launch:
        launch = strided_kernels.prepare_launch(self.engine, self.chain, outs, given)
        needed = 16 * len(outs + given) + 4 * len(self._numbers) + 8 * len(launch.sizes)
        if needed > self.engine.place.device.max_parameter_size:
            raise NotHere(f"a kernel with {needed} bytes of arguments")
        return launch


class _Writer:
    """Translates recorded steps into the steps of a kernel."""

    def __init__(
        self, inputs: list[Any], steps: Sequence[Any], results: list[Any], hosted: Collection[Any]
    ) -> None:
        self._places = {traced.place: n for n, traced in enumerate(inputs)}
        self._inputs = {traced.place: traced for traced in inputs}
        self._recorded = steps
        self._results = results
        self._reads: dict[int, Read] = {}  # by value index
        self._hosted = {traced.place for traced in hosted}
        self._numbers: dict[str, float | int] = {}
        self._steps: list[Step] = []
        self._same: dict[int, int] = {}  # casts that change nothing here: index -> index
        self._final: set[int] = set()  # values that only the store casts to their dtype

    def write(self) -> tuple[strided_kernels.Chain, list[int], list[float | int], list[Any]]:
        """The chain, the indices of the inputs it reads, its scalars, its results."""
        for step in self._recorded:
            if step.call is None:
                self._cast(step)
            else:
                self._call(step)
        for result in self._results:
            if result.place in self._same:  # only read and cast
                self._steps.append(Step(f"v{result.place}", f"${self._value(result, False)}"))
        if not self._reads:
            raise NotHere("numbers alone")
        names = tuple(f"v{r.place}" for r in self._results)
        chain = strided_kernels.Chain(
            _TYPE,
            tuple(self._reads.values()),
            tuple((name, _TYPE) for name in self._numbers),
            tuple(self._steps),
            names,
            wide=True,
        )
        reads = [self._places[place] for place in self._reads]
        return chain, reads, list(self._numbers.values()), self._results

    def _value(self, traced: Any, truth: bool) -> str:
        """The name of a value; an input is added to the reads."""
        place = self._where(traced)
        if place in self._final:
            raise NotHere("a value is read after it was rounded")
        if place in self._hosted:
            if truth:
                raise NotHere("a truth value of the host")
            self._numbers[f"v{place}"] = self._places[place]
        elif place in self._inputs:
            word = storage(self._inputs[place].dtype)
            read = Read(f"v{place}", word, TRUTH if truth else _TYPE)
            if self._reads.setdefault(place, read) != read:
                raise NotHere("an input is both a truth value and a number")
        return f"v{place}"

    def _where(self, traced: Any) -> int:
        """The index a value comes from: a cast of an input is read directly."""
        place: int = traced.place
        return self._same.get(place, place)

    def _cast(self, step: Any) -> None:
        source, kind = step.args
        place = step.result.place
        if kind == dtypes.FLOAT32:
            if source.place in self._inputs and source.dtype.kind != "c":
                self._same[place] = source.place
                return
            if source.dtype.kind == "b":
                text = f"${self._value(source, True)} != 0 ? K(1.0) : K(0.0)"
                self._steps.append(Step(f"v{place}", text))
                return
        narrow = kind in dtypes.NARROW and source.dtype == dtypes.FLOAT32
        if narrow and any(r is step.result for r in self._results):
            self._steps.append(Step(f"v{place}", f"${self._value(source, False)}"))
            self._final.add(place)
            return
        raise NotHere(f"a cast to {kind}")

    def _call(self, step: Any) -> None:
        op, bound = step.call
        kind = step.result.dtype
        if kind not in (dtypes.FLOAT32, dtypes.BOOL):
            raise NotHere(f"{op.name} to {kind}")
        logical = _LOGICAL.get(op.name) if kind == dtypes.BOOL else None
        text, wide = expression_of(logical or op, bound, dtypes.FLOAT32)
        if not wide:
            raise NotHere(f"{op.name} goes one by one")
        names: dict[str, str] = {}
        for name in sorted(set(NAME.findall(text))):
            names[name] = self._argument(op, name, bound[name])
        value = NAME.sub(lambda found: f"${names[found[1]]}", text)
        self._steps.append(Step(f"v{step.result.place}", value, kind == dtypes.BOOL))

    def _argument(self, op: Any, name: str, value: Any) -> str:
        """The name of an argument: a value, or a scalar of the kernel."""
        if hasattr(value, "place"):
            apart = op.rule.among is not None and name not in op.rule.among
            truth = apart or (op.name in _LOGICAL and value.dtype == dtypes.BOOL)
            if value.dtype != (dtypes.BOOL if truth else dtypes.FLOAT32):
                raise NotHere(f"{value.dtype} among float32")
            return self._value(value, truth)
        if isinstance(value, complex):
            raise NotHere("complex numbers")
        made = f"n{len(self._numbers)}"
        self._numbers[made] = float(value.item() if hasattr(value, "ndim") else value)
        return made
