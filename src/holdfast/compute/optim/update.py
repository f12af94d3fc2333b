"""Runs an optimizer's update: block by block on NumPy, op by op on other engines.

An update is written once, against a few functions with `out=` (`multiply`, `add`, `sqrt` …) and
scratch memory. On the NumPy engine those are NumPy's own, and the arrays are blocks that stay
in the cache: a step of Adam makes a dozen passes over five arrays, and whole arrays would go to
memory and back for each of them. Other engines get whole tensors and the ops of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.autograd import tape
from holdfast.compute.engines.numpy import threads
from holdfast.compute.tensors.custom_tensor import CustomTensor

BLOCK = 32768  # elements: five arrays and three of scratch take 1 MB, which fits a core's cache
_LEAST = 4  # blocks for which another thread is worth waking

# update(xp, parameter, gradient, states, scratch): changes parameter and states, and the scratch.
Update = Callable[[Any, Any, Any, Sequence[Any], Sequence[Any]], None]


class _Ops:
    """NumPy's function names, on the op table."""

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, _NAMES.get(name, name))


_NAMES = {"multiply": "mul", "subtract": "sub", "divide": "div", "negative": "neg"}
_ops = _Ops()


def run(
    update: Update, parameter: CustomTensor, states: Sequence[CustomTensor], scratch: int
) -> None:
    """Apply `update` to a parameter, its gradient and its states, all in place."""
    gradient: Any = parameter.grad
    engine = parameter.device.engine
    if engine.name == "numpy":
        _run_blocks(update, parameter._array, gradient._array, [s._array for s in states], scratch)
    else:
        made = [
            CustomTensor._wrap(
                engine.alloc(tuple(parameter.shape), parameter.dtype), parameter.device
            )
            for _ in range(scratch)
        ]
        with tape.no_grad():
            update(_ops, parameter, gradient, states, made)
    for tensor in (parameter, *states):
        tensor._touch()


def _run_blocks(
    update: Update, parameter: Any, gradient: Any, states: Sequence[Any], scratch: int
) -> None:
    """Run all blocks; each thread takes a contiguous range."""
    arrays = [parameter, *states]
    changed = [numpy.ascontiguousarray(a).reshape(-1) for a in arrays]
    gradient = numpy.ascontiguousarray(gradient).reshape(-1)
    size = parameter.size
    teams = min(threads.get_num_threads(), size // (_LEAST * BLOCK)) or 1
    run_of = -(-size // (teams * BLOCK)) * BLOCK

    def work(team: int) -> None:
        part = slice(team * run_of, (team + 1) * run_of)
        _in_turn(update, [array[part] for array in changed], gradient[part], scratch)

    threads.share_out(work, teams)
    for array, flat in zip(arrays, changed, strict=True):
        if not array.flags.c_contiguous:  # a copy was updated
            array[...] = flat.reshape(array.shape)


def _in_turn(update: Update, changed: Sequence[Any], gradient: Any, scratch: int) -> None:
    kind = dtypes.working(changed[0].dtype)
    narrow = kind != changed[0].dtype
    size = changed[0].size
    memory = [numpy.empty(min(size, BLOCK), kind) for _ in range(scratch)]
    for begin in range(0, size, BLOCK):
        part = slice(begin, min(begin + BLOCK, size))
        parts = [array[part] for array in changed]
        held = [p.astype(kind) for p in parts] if narrow else parts
        given = gradient[part].astype(kind, copy=False)
        short = [m[: part.stop - begin] for m in memory]
        update(numpy, held[0], given, held[1:], short)
        if narrow:
            for target, source in zip(parts, held, strict=True):
                target[...] = source


def effective_gradient(
    xp: Any, parameter: Any, gradient: Any, scratch: Any, maximize: bool, weight_decay: float
) -> Any:
    """The gradient, negated to maximize, with weight decay added."""
    if maximize:
        gradient = xp.negative(gradient, out=scratch)
    if weight_decay:
        # A temporary of its own: the scratch may hold the gradient already.
        pulled = xp.multiply(parameter, weight_decay)
        gradient = xp.add(gradient, pulled, out=scratch)
    return gradient


def subtract_scaled(xp: Any, target: Any, source: Any, factor: float, scratch: Any) -> None:
    """target -= factor * source."""
    xp.multiply(source, factor, out=scratch)
    xp.subtract(target, scratch, out=target)
