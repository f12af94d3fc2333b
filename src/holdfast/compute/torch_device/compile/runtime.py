"""What generated source calls, and calling it: arrays out of tensors, tensors again.

Inputs are read without a copy, on the device and on the CPU; an input that is returned is the same
tensor.
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
from holdfast.compute.engines.layout.arrays import memory
from holdfast.compute.engines.numpy import kernels
from holdfast.compute.torch_device.api import seeds
from holdfast.compute.torch_device.error_translation import to_torch_error
from holdfast.compute.torch_device.storage import tensor_bridge
from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE, as_array, as_tensor

Array = Any


# ---- called by generated source


def arrays(out: Any) -> Any:
    """Turn NumPy scalars among a kernel's results into arrays."""
    if isinstance(out, list | tuple):
        return [arrays(one) for one in out]
    return numpy.asarray(out) if isinstance(out, numpy.generic) else out


def lay_out(array: Array, steps: tuple[int, ...]) -> Array:
    """The array with the strides that torch traced: itself, or a copy."""
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


def restride(array: Array, size: Any, stride: Any, offset: int) -> Array:
    """Sizes and strides over an array's memory, `offset` elements behind its beginning."""
    width = array.itemsize
    strides = [s * width for s in stride]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 in size:
        return numpy.empty(size, array.dtype)
    if array.flags.c_contiguous and offset >= 0 and reach <= array.size:
        return numpy.ndarray(tuple(size), array.dtype, array, offset * width, strides)
    room, begin = memory(array)
    return numpy.ndarray(tuple(size), array.dtype, room, begin + offset * width, strides)


def write(array: Array, value: Array) -> Array:
    """Copy `value` into an array."""
    array[...] = kernels.cast(value, array.dtype)
    return array


def by_torch(overload: Any, place: str, args: Any, kwargs: Any) -> Any:
    """Call an overload by torch; on the device that is our handlers, or a fallback."""
    make = as_tensor if place == DEVICE else tensor_bridge.as_cpu_tensor
    here = torch.device(place)

    def to_torch(value: Any) -> Any:
        if isinstance(value, torch.device):
            return here
        return make(value) if isinstance(value, numpy.ndarray) else value

    def to_array(value: Any) -> Any:
        return tensor_bridge.as_array_any(value) if isinstance(value, torch.Tensor) else value

    with torch.no_grad():
        out = overload(*map_nested(args, to_torch), **map_nested(kwargs, to_torch))
    return map_nested(out, to_array)


def save_state(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The generator's state, and what an overload draws from it."""
    overload, *rest = args
    state = from_cpu(seeds.get_rng_state())
    return [state, by_torch(overload, DEVICE, rest, kwargs)]


def with_state(args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call an overload with a saved generator state, then restore the current one."""
    state, overload, *rest = args
    with seeds.using_state(to_cpu(state)):
        return by_torch(overload, DEVICE, rest, kwargs)


def map_nested(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to everything in lists, tuples and dictionaries."""
    if isinstance(value, dict):
        return {k: map_nested(v, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [map_nested(v, function) for v in value]
    return function(value)


# ---- inputs and outputs


def from_cpu(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the CPU."""
    try:
        return tensor.detach().numpy()
    except (RuntimeError, TypeError):  # a conjugate, or a dtype that NumPy lacks
        return tensor_bridge.from_cpu(tensor)


def from_device(tensor: torch.Tensor) -> Array:
    """The array of a tensor on the device, with conjugate and negative bits resolved."""
    return as_array(tensor.resolve_conj().resolve_neg())


def to_cpu(array: Array) -> torch.Tensor:
    """A tensor on the CPU over an array's memory."""
    try:
        return torch.from_numpy(array)
    except (ValueError, TypeError):  # negative strides, or a dtype that NumPy lacks
        return tensor_bridge.as_cpu_tensor(array)


class Output:
    """Turns one result into a tensor on the device and with the strides that torch expects.

    `steps` are torch's strides; where sizes change from call to call, `order` lists dimensions from
    the outermost in memory to the innermost. Without either, strides stay as they are.
    """

    __slots__ = ("_order", "_raise", "_steps", "_strides")

    def __init__(
        self, place: str, width: int, steps: tuple[int, ...] | None, order: list[int] | None
    ) -> None:
        self._raise = as_tensor if place == DEVICE else to_cpu
        self._steps, self._order = steps, order
        self._strides = None if steps is None else tuple(s * width for s in steps)

    def __call__(self, array: Array) -> torch.Tensor:
        if self._strides is not None:
            if array.strides != self._strides:
                array = lay_out(array, self._steps or ())
        elif self._order is not None and array.ndim == len(self._order):
            array = lay_out(array, packed_strides(array.shape, self._order))
        return self._raise(array)

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result that is a tensor already: itself, or a copy with the traced strides."""
        steps = self._steps
        if steps is None and self._order is not None and tensor.dim() == len(self._order):
            steps = packed_strides(tensor.shape, self._order)
        return tensor if steps is None else lay_out_tensor(tensor, steps)


def lay_out_tensor(tensor: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
    """A tensor with the strides that torch traced: itself, or a copy."""
    if tuple(tensor.stride()) == steps:
        return tensor
    if any(n > 1 and not s for n, s in zip(tensor.shape, steps, strict=True)):
        return tensor
    made = torch.empty_strided(tensor.shape, steps, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def packed_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of an array without gaps whose dimensions have this order."""
    steps, count = [1] * len(shape), 1
    for dim in reversed(order):
        steps[dim] = count
        count *= max(shape[dim], 1)
    return tuple(steps)


class Source:
    """Generated source and the function in it.

    `nodes` are the nodes of the graph, by the lines that compute them.
    """

    def __init__(
        self, name: str, text: str, namespace: dict[str, Any], nodes: dict[int, str]
    ) -> None:
        self.name, self.text, self.nodes = name, text, nodes
        exec(compile(text, name, "exec"), namespace)
        self.function: Callable[[list[Any]], Any] = namespace["computed"]
        lines = text.splitlines(keepends=True)
        linecache.cache[name] = (len(text), None, lines, name)
        weakref.finalize(self, linecache.cache.pop, name, None)

    def translate(self, exc: Exception) -> HoldfastError:
        """An exception of a run as an error that names the node."""
        node, line = "a compiled graph", exc.__traceback__
        while line is not None:
            if line.tb_frame.f_code.co_filename == self.name:
                node = self.nodes.get(line.tb_lineno, node)
            line = line.tb_next
        if isinstance(exc, HoldfastError):
            return to_torch_error(exc)
        if isinstance(exc, MemoryError):
            what = f"cannot compute {node}: no memory for the result"
            return to_torch_error(OutOfMemory(what, hint="fewer rows at a time"))
        wrong = BadInput(
            f"cannot compute {node}: {exc}",
            expected="what the graph was compiled for",
            hint='options={"show": True} prints the source',
        )
        wrong.__cause__ = exc
        return to_torch_error(wrong)


def make_runner(
    source: Source,
    lowers: Sequence[Callable[[Any], Any] | None],
    outputs: Sequence[int | Callable[[Any], Any] | None],
) -> Callable[[list[Any]], list[Any]]:
    """A function of a list of inputs, which it empties; its `source` is the text.

    An output is the index of an input, a function from array to tensor, or None: unchanged.
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
            raise source.translate(exc) from exc
        return [
            out if how is None or out is None else same[how] if isinstance(how, int) else how(out)
            for how, out in zip(outputs, found, strict=True)
        ]

    made: Any = compiled
    made._boxed_call = True  # torch looks for this
    made.source = source.text
    return compiled


_FAILURES = (
    HoldfastError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, MemoryError,
)  # fmt: skip
