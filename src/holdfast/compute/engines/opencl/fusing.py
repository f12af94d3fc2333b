"""A chain of pointwise ops as one kernel.

Covers: recorded steps (holdfast.compute.fusion) whose numbers are float32 and truth values, with
several results; inputs may have any format that is cast to float32 first, and may be single numbers
of the host.
Leaves to others: recording; every other chain (called op by op).
Promise: a chain computes what its ops compute one by one; nothing between two ops goes to memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError
from holdfast.compute import dtype as formats
from holdfast.compute.engines.opencl import elementwise
from holdfast.compute.engines.opencl.array import Array, NotHere
from holdfast.compute.engines.opencl.expressions import expression_of
from holdfast.compute.engines.opencl.kernels import storage
from holdfast.compute.engines.opencl.programs import BuildFailed
from holdfast.compute.engines.opencl.texts import NAME, TRUTH, Read, Step
from holdfast.compute.ops.table import OPS

if TYPE_CHECKING:
    from holdfast.compute.engines.opencl.engine import OpenCLEngine

_TYPE = "float"
_WORDS = ("and", "or", "xor")
# Ops that take truth values as well, and what computes them then.
_LOGICAL = {
    **{name: OPS[name] for name in ("logical_not", *(f"logical_{word}" for word in _WORDS))},
    **{f"bitwise_{word}.Tensor": OPS[f"logical_{word}"] for word in _WORDS},
    "bitwise_not": OPS["logical_not"],
}


def fused(
    engine: OpenCLEngine,
    inputs: list[Any],
    steps: Sequence[Any],
    results: list[Any],
    hosted: Collection[Any] = (),
) -> Fused | None:
    """What computes recorded steps in one kernel; None where they have to be called one by one.

    `hosted` are inputs that will be single numbers of NumPy's.
    """
    try:
        return Fused(engine, *_Writer(inputs, steps, results, hosted).written())
    except (NotHere, HoldfastError, ValueError, TypeError, ArithmeticError):
        return None  # the plain calls say what is wrong, if anything is


class Fused:
    """One kernel for a chain: `run(tensors)`."""

    def __init__(
        self,
        engine: OpenCLEngine,
        chain: elementwise.Chain,
        reads: list[int],
        numbers: list[float | int],
        results: list[Any],
    ) -> None:
        """`numbers` are such, or the places of inputs that are (as whole numbers)."""
        self.engine, self.chain = engine, chain
        self._reads, self._numbers = reads, numbers
        self.shape = results[0].shape
        self._kinds = [result.dtype for result in results]
        self._is_broken = False

    def run(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The results for these inputs; None where the device cannot: op by op it may."""
        outs = self.tried([t._array for t in tensors])
        if outs is None:
            return None
        wrap, device = type(tensors[0])._wrap, tensors[0].device
        return [wrap(out, device) for out in outs]

    def tried(
        self, arrays: Sequence[Any], into: Sequence[Array | None] | None = None
    ) -> list[Array] | None:
        """`on_arrays`, or None where the device cannot."""
        if self._is_broken:
            return None
        try:
            return self.on_arrays(arrays, into)
        except NotHere:
            return None
        except BuildFailed:
            self._is_broken = True  # building takes long: once is enough
            return None

    def on_arrays(
        self, arrays: Sequence[Any], into: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """`run` for arrays; `into` are arrays that get results. Raises NotHere or BuildFailed.

        An array that gets a result may be read as well, unless numbers of it are read elsewhere
        than they are written.
        """
        engine = self.engine
        given = [arrays[place] for place in self._reads]
        targets = [None] * len(self._kinds) if into is None else into
        outs = [
            engine.alloc(self.shape, kind) if target is None else target
            for kind, target in zip(self._kinds, targets, strict=True)
        ]
        key = self, *(None if a is None else elementwise.layout(engine, a) for a in targets)
        key = *key, *(elementwise.layout(engine, a) for a in given)
        launch = engine.plans.get(key)
        if launch is None:
            launch = elementwise.remember(engine, key, self._prepared(outs, given))
        numbers = [float(arrays[n].item()) if isinstance(n, int) else n for n in self._numbers]
        engine.launch(
            *(launch.kernel, launch.size, launch.group),
            *(*outs, *given, *numbers, *launch.sizes),
        )
        return outs

    def _prepared(self, outs: list[Array], given: list[Array]) -> elementwise.Launch:
        launch = elementwise.prepared(self.engine, self.chain, outs, given)
        needed = 16 * len(outs + given) + 4 * len(self._numbers) + 8 * len(launch.sizes)
        if needed > self.engine.place.device.max_parameter_size:
            raise NotHere(f"a kernel with {needed} bytes of arguments")
        return launch


class _Writer:
    """Recorded steps as the steps of a kernel."""

    def __init__(
        self,
        inputs: list[Any],
        steps: Sequence[Any],
        results: list[Any],
        hosted: Collection[Any],
    ) -> None:
        self._places = {traced.place: n for n, traced in enumerate(inputs)}
        self._inputs = {traced.place: traced for traced in inputs}
        self._recorded = steps
        self._results = results
        self._reads: dict[int, Read] = {}  # by place
        self._hosted = {traced.place for traced in hosted}
        self._numbers: dict[str, float | int] = {}
        self._steps: list[Step] = []
        self._same: dict[int, int] = {}  # casts that change nothing here: place -> place
        self._final: set[int] = set()  # values that only the store puts into their format

    def written(self) -> tuple[elementwise.Chain, list[int], list[float | int], list[Any]]:
        """The chain, which inputs it reads, its numbers, its results."""
        for step in self._recorded:
            if step.call is None:
                self._cast(step)
            else:
                self._call(step)
        for result in self._results:
            if result.place in self._same:  # it is only read and cast
                self._steps.append(Step(f"v{result.place}", f"${self._value(result, False)}"))
        if not self._reads:
            raise NotHere("numbers alone")
        names = tuple(f"v{r.place}" for r in self._results)
        chain = elementwise.Chain(
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
        """The name of a value: read first where it is an input."""
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
        """Where a value comes from: a cast of an input is read in place of it."""
        place: int = traced.place
        return self._same.get(place, place)

    def _cast(self, step: Any) -> None:
        source, kind = step.args
        place = step.result.place
        if kind == formats.FLOAT32:
            if source.place in self._inputs and source.dtype.kind != "c":
                self._same[place] = source.place
                return
            if source.dtype.kind == "b":
                text = f"${self._value(source, True)} != 0 ? K(1.0) : K(0.0)"
                self._steps.append(Step(f"v{place}", text))
                return
        narrow = kind in formats.NARROW and source.dtype == formats.FLOAT32
        if narrow and any(r is step.result for r in self._results):
            self._steps.append(Step(f"v{place}", f"${self._value(source, False)}"))
            self._final.add(place)
            return
        raise NotHere(f"a cast to {kind}")

    def _call(self, step: Any) -> None:
        op, bound = step.call
        kind = step.result.dtype
        if kind not in (formats.FLOAT32, formats.BOOL):
            raise NotHere(f"{op.name} to {kind}")
        logical = _LOGICAL.get(op.name) if kind == formats.BOOL else None
        text, wide = expression_of(logical or op, bound, formats.FLOAT32)
        if not wide:
            raise NotHere(f"{op.name} goes one by one")
        names: dict[str, str] = {}
        for name in sorted(set(NAME.findall(text))):
            names[name] = self._argument(op, name, bound[name])
        value = NAME.sub(lambda found: f"${names[found[1]]}", text)
        self._steps.append(Step(f"v{step.result.place}", value, kind == formats.BOOL))

    def _argument(self, op: Any, name: str, value: Any) -> str:
        """The name of an argument: of a value, or of a number that the kernel is given."""
        if hasattr(value, "place"):
            apart = op.rule.among is not None and name not in op.rule.among
            truth = apart or (op.name in _LOGICAL and value.dtype == formats.BOOL)
            if value.dtype != (formats.BOOL if truth else formats.FLOAT32):
                raise NotHere(f"{value.dtype} among float32")
            return self._value(value, truth)
        if isinstance(value, complex):
            raise NotHere("complex numbers")
        made = f"n{len(self._numbers)}"
        self._numbers[made] = float(value.item() if hasattr(value, "ndim") else value)
        return made
