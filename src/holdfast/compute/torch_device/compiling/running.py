"""What generated source calls, and calling it: arrays out of tensors, tensors again.

Covers: lowering inputs, raising outputs in the layout that torch traced, errors that name the node.
Leaves to others: the source (`source`), arrays as tensors and back (`storage`).
Promise: inputs are looked at without a copy, on the device and on the CPU; an input that is
returned is the same tensor.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
from holdfast.compute.engine import ENGINES
from holdfast.compute.engines.numpy import kernels, views
from holdfast.compute.torch_device import seeds, storage
from holdfast.compute.torch_device.errors import as_torch_has_it
from holdfast.compute.torch_device.storage import DEVICE, down, up

Array = Any


# ---- called by generated source


def arrays(out: Any) -> Any:
    """Results of a kernel without NumPy's scalars."""
    if isinstance(out, list | tuple):
        return [arrays(one) for one in out]
    return numpy.asarray(out) if isinstance(out, numpy.generic) else out


def laid(array: Array, steps: tuple[int, ...]) -> Array:
    """The array in memory as torch laid it out when it traced: itself, or a copy."""
    size = array.itemsize
    strides = array.strides
    if strides == tuple([s * size for s in steps]):
        return array
    lengths = array.shape
    if not array.size:
        return numpy.lib.stride_tricks.as_strided(array, lengths, [s * size for s in steps])
    if any(n > 1 and not s for n, s in zip(lengths, steps, strict=True)):
        return array
    order = sorted(range(array.ndim), key=lambda d: (-steps[d], -lengths[d]))
    made = numpy.empty([lengths[d] for d in order], array.dtype)
    placed = made.transpose([order.index(d) for d in range(array.ndim)])
    placed[...] = array
    return placed


def restrided(array: Array, size: Any, stride: Any, offset: int) -> Array:
    """Sizes and strides over an array's memory, `offset` elements behind its beginning."""
    width = array.itemsize
    strides = [s * width for s in stride]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 in size:
        return numpy.empty(size, array.dtype)
    if array.flags.c_contiguous and offset >= 0 and reach <= array.size:
        return numpy.ndarray(tuple(size), array.dtype, array, offset * width, strides)
    room, begin = views.memory(array)
    return numpy.ndarray(tuple(size), array.dtype, room, begin + offset * width, strides)


def write(array: Array, value: Array) -> Array:
    """Copy numbers into an array."""
    array[...] = kernels.cast(value, array.dtype)
    return array


def by_torch(overload: Any, place: str, args: Any, kwargs: Any) -> Any:
    """What torch makes of an overload: for the device it asks our handlers, or falls back."""
    raised = _raiser(place)
    with torch.no_grad():
        out = overload(*each(args, raised), **each(kwargs, raised))
    return each(out, _lowered)


def noting_state(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The state of the device's random numbers, and what an overload then draws."""
    overload, *rest = args
    state = from_cpu(seeds.get_rng_state())
    return [state, by_torch(overload, DEVICE, rest, kwargs)]


def with_state(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What an overload draws from a state that was noted; the present one stays."""
    state, overload, *rest = args
    before = seeds.get_rng_state()
    seeds.set_rng_state(to_cpu(state))
    try:
        return by_torch(overload, DEVICE, rest, kwargs)
    finally:
        seeds.set_rng_state(before)


def each(value: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of everything in lists, tuples and dictionaries."""
    if isinstance(value, dict):
        return {k: each(v, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [each(v, function) for v in value]
    return function(value)


def _raiser(place: str) -> Callable[[Any], Any]:
    make = up if place == DEVICE else storage.on_cpu
    here = torch.device(place)

    def raised(value: Any) -> Any:
        if isinstance(value, torch.device):
            return here
        return make(value) if isinstance(value, numpy.ndarray) else value

    return raised


def _lowered(value: Any) -> Any:
    return storage.down_any(value) if isinstance(value, torch.Tensor) else value


# ---- inputs and outputs


def from_cpu(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the CPU."""
    try:
        return tensor.detach().numpy()
    except (RuntimeError, TypeError):  # a conjugate, or a format that NumPy has no name for
        return storage.from_cpu(tensor)


def from_device(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device, conjugated where it is a view that says so."""
    return down(tensor.resolve_conj().resolve_neg())


def to_cpu(array: Array) -> torch.Tensor:
    """A tensor on the CPU over an array's memory."""
    try:
        return torch.from_numpy(array)
    except (ValueError, TypeError):  # backwards, or a format that NumPy has no name for
        return storage.on_cpu(array)


class Output:
    """How one result becomes what torch expects: in a place, in a layout.

    `steps` are torch's strides; where sizes change from call to call, `order` names dimensions from
    the outermost in memory to the innermost. Neither: in whatever layout it has.
    """

    __slots__ = ("_order", "_raise", "_steps", "_strides")

    def __init__(
        self, place: str, width: int, steps: tuple[int, ...] | None, order: list[int] | None
    ) -> None:
        self._raise = up if place == DEVICE else to_cpu
        self._steps, self._order = steps, order
        self._strides = None if steps is None else tuple(s * width for s in steps)

    def __call__(self, array: Array) -> torch.Tensor:
        if self._strides is not None:
            if array.strides != self._strides:
                array = laid(array, self._steps or ())
        elif self._order is not None and array.ndim == len(self._order):
            array = laid(array, packed(array.shape, self._order))
        return self._raise(array)

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result that is a tensor already: itself, or a copy in the layout that torch traced."""
        steps = self._steps
        if steps is None and self._order is not None and tensor.dim() == len(self._order):
            steps = packed(tensor.shape, self._order)
        return tensor if steps is None else relaid(tensor, steps)


def relaid(tensor: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
    """A tensor as torch laid it out when it traced: itself, or a copy."""
    if tuple(tensor.stride()) == steps:
        return tensor
    if any(n > 1 and not s for n, s in zip(tensor.shape, steps, strict=True)):
        return tensor
    made = torch.empty_strided(tensor.shape, steps, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def packed(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array without gaps, its dimensions lying in this order."""
    steps, count = [1] * len(shape), 1
    for dim in reversed(order):
        steps[dim] = count
        count *= max(shape[dim], 1)
    return tuple(steps)


class Source:
    """Source that was generated, and the function in it.

    `nodes` are the nodes of the graph, by the lines that compute them.
    """

    def __init__(
        self, name: str, text: str, namespace: dict[str, Any], nodes: dict[int, str]
    ) -> None:
        self.name, self.text, self.nodes = name, text, nodes
        code = compile(text, name, "exec")
        exec(code, namespace)
        self.function: Callable[[list[Any]], Any] = namespace["computed"]
        lines = text.splitlines(keepends=True)
        linecache.cache[name] = (len(text), None, lines, name)
        weakref.finalize(self, linecache.cache.pop, name, None)

    def failed(self, exc: Exception) -> HoldfastError:
        """The error of a run, with the node that was computed."""
        node, line = "a compiled graph", exc.__traceback__
        while line is not None:
            if line.tb_frame.f_code.co_filename == self.name:
                node = self.nodes.get(line.tb_lineno, node)
            line = line.tb_next
        if isinstance(exc, HoldfastError):
            return as_torch_has_it(exc)
        if isinstance(exc, MemoryError):
            what = f"cannot compute {node}: no memory for the result"
            return as_torch_has_it(OutOfMemory(what, hint="fewer rows at a time"))
        wrong = BadInput(
            f"cannot compute {node}: {exc}",
            expected="what the graph was compiled for",
            hint='options={"show": True} prints the source',
        )
        wrong.__cause__ = exc
        return as_torch_has_it(wrong)


def runner(
    source: Source,
    lowers: Sequence[Callable[[Any], Any] | None],
    outputs: Sequence[int | Callable[[Any], Any] | None],
) -> Callable[[list[Any]], list[Any]]:
    """What torch calls with a list of inputs, which it empties; `source` is on it as text.

    An output is a place among the inputs, how an array becomes a tensor, or None: as it is.
    """
    kept = sorted({o for o in outputs if isinstance(o, int)})
    call, function = ENGINES["numpy"].call, source.function

    def compiled(args: list[Any]) -> list[Any]:
        given = [a if how is None else how(a) for how, a in zip(lowers, args, strict=True)]
        same = {place: args[place] for place in kept}
        args.clear()
        try:
            found = call(function, (given,), {})
        except _FAILURES as exc:
            raise source.failed(exc) from exc
        return [
            out if how is None or out is None else same[how] if isinstance(how, int) else how(out)
            for how, out in zip(outputs, found, strict=True)
        ]

    made: Any = compiled
    made._boxed_call = True  # what torch looks for
    made.source = source.text
    return compiled


_FAILURES = (
    HoldfastError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, MemoryError,
)  # fmt: skip
