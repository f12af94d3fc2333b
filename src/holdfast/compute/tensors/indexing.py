"""`tensor[index]` and `tensor[index] = value`.

Integers, slices and None return views; masks, lists and index tensors return copies. Assignment
writes to the tensor's own memory, so every view of it sees the change.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.autograd import tape
from holdfast.compute.engine import run
from holdfast.compute.ops.schema import describe
from holdfast.compute.ops.table import OPS
from holdfast.compute.tensors.host_data import host_array
from holdfast.compute.tensors.inplace import assign, refuse_leaf

Tensor = Any  # a CustomTensor, whose module imports this one

_UINT8 = dtypes.DTYPES["uint8"]
_KINDS = "integers, slices, None, ..., booleans, or tensors and lists of these"


class BadIndex(BadInput, IndexError):
    """An index that does not fit the tensor."""


class ViewStep(NamedTuple):
    """One basic indexing step: an op that returns a view, and its arguments."""

    name: str
    args: tuple[Any, ...]

    def apply(self, of: Tensor) -> Tensor:
        return getattr(F, self.name)(of, *self.args)

    def undo(self, of: Tensor, part: Tensor) -> Tensor:
        """`of` with the view replaced by `part`."""
        if self.name == "unsqueeze":
            return F.squeeze(part, *self.args)
        return getattr(F, f"{self.name}_scatter")(of, part, *self.args)


def getitem(of: Tensor, index: Any) -> Tensor:
    """`of[index]`. Raises BadIndex."""
    if type(index) is int and of.ndim and -of.shape[0] <= index < of.shape[0]:
        return F.select(of, 0, index)
    steps, indices = _Reader(of, index).read()
    found = of
    for step in steps:
        found = step.apply(found)
    if indices:
        return _check(of, index, lambda: F.index(found, indices))
    return F.alias(of) if found is of else found


def setitem(of: Tensor, index: Any, value: Any) -> None:
    """`of[index] = value`, in place. Raises BadIndex, and Misuse where gradients forbid it."""
    steps, indices = _Reader(of, index).read()
    asks = of.requires_grad or getattr(value, "requires_grad", False)
    given = _as_value(of, value)
    if asks and tape.is_grad_enabled():
        _assign_recorded(of, index, steps, indices, given)
        return
    with tape.no_grad():
        _assign(of, index, steps, indices, given)


# ---- reading an index


class _Reader:
    """Reads an index from left to right, and tracks the shape of the view so far."""

    def __init__(self, of: Tensor, index: Any) -> None:
        self.of, self.index = of, index
        self.sizes = list(of.shape)
        self.dim = 0  # of the view so far
        self.source = 0  # of the tensor itself, for errors
        self.steps: list[ViewStep] = []
        self.indices: list[Tensor | None] = []
        self.covered = 0  # dimensions that `indices` speaks of

    def read(self) -> tuple[list[ViewStep], list[Tensor | None]]:
        given = self.index if isinstance(self.index, tuple) else (self.index,)
        items = [self._plain(item) for item in given]
        asked = sum(_dimensions(item) for item in items)
        if asked > self.of.ndim:
            raise self.error(f"{asked} indices are too many", f"at most {self.of.ndim}")
        if sum(item is Ellipsis for item in items) > 1:
            raise self.error("... occurs twice", "at most one ...")
        for item in items:
            self._take(item, self.of.ndim - asked)
        return self.steps, self.indices

    def _plain(self, item: Any) -> Any:
        """An item as None, Ellipsis, a slice, an int, a bool or a tensor with dimensions."""
        if item is None or item is Ellipsis or isinstance(item, slice | bool | int):
            return item
        if isinstance(item, numpy.integer | numpy.bool_):
            return item.item()
        if hasattr(item, "_array"):
            made = item
        elif isinstance(item, list | range | numpy.ndarray) or hasattr(item, "detach"):
            array = host_array(_to_host(item), None)
            kind = dtypes.INT64 if not array.size and isinstance(item, list) else array.dtype
            made = self.of._new(array, kind)
        else:
            raise self.error(f"it contains a {type(item).__name__}", _KINDS)
        if dtypes.category(made.dtype) > dtypes.INTEGER:
            raise self.error(f"it contains {describe(made)}", _KINDS)
        if made.ndim:
            return made
        return bool(made.data) if _is_mask(made) else int(made.data)

    def _take(self, item: Any, left_out: int) -> None:
        if item is Ellipsis:
            self.dim += left_out
            self.source += left_out
        elif item is None:
            self._unsqueeze()
            self.dim += 1
        elif isinstance(item, bool):
            self._unsqueeze()
            chosen = numpy.zeros(int(item), numpy.int64)
            self._choose(self.of._new(chosen, dtypes.INT64), 1)
            self.source -= 1  # the dimension was not there before
        elif isinstance(item, int):
            self._select(item)
        elif isinstance(item, slice):
            self._slice(item)
        else:
            self._choose(item, item.ndim if _is_mask(item) else 1)

    def _unsqueeze(self) -> None:
        self.steps.append(ViewStep("unsqueeze", (self.dim,)))
        self.sizes.insert(self.dim, 1)

    def _select(self, item: int) -> None:
        size = self.sizes[self.dim]
        if not -size <= item < size:
            wanted = f"{-size} to {size - 1}" if size else "no index: it is empty"
            raise self.error(f"{item} is out of range", wanted)
        self.steps.append(ViewStep("select", (self.dim, item)))
        del self.sizes[self.dim]
        self.source += 1

    def _slice(self, item: slice) -> None:
        size = self.sizes[self.dim]
        if item != slice(None):
            bounds = (item.start, item.stop, item.step)
            start, stop, step = map(self._slice_bound, bounds)
            if step is not None and step <= 0:
                wanted = "a step of 1 or more, or flip()"
                raise self.error(f"the step {step} is not positive", wanted)
            first, last, step = slice(start, stop, step).indices(size)
            last = max(first, last)
            self.steps.append(ViewStep("slice", (self.dim, first, last, step)))
            self.sizes[self.dim] = -((first - last) // step)
        self.dim += 1
        self.source += 1

    def _slice_bound(self, bound: Any) -> int | None:
        if hasattr(bound, "_array"):
            bound = bound.data.item()
        try:
            return None if bound is None else operator.index(bound)
        except TypeError:
            raise self.error(f"{bound!r} bounds a slice", "integers or None") from None

    def _choose(self, item: Tensor, count: int) -> None:
        there = self.sizes[self.dim : self.dim + count]
        if _is_mask(item) and list(item.shape) != there:
            raise self.error(f"the mask {describe(item)} does not fit", f"a mask of shape {there}")
        self.indices += [None] * (self.dim - self.covered)
        self.indices.append(item)
        self.dim += count
        self.source += count
        self.covered = self.dim

    def error(self, reason: str, expected: str) -> BadIndex:
        at = f" at dimension {self.source}" if self.source else ""
        return BadIndex(
            f"cannot index {describe(self.of)} with {_format_index(self.index)}: {reason}{at}",
            expected=expected,
        )


def _is_mask(item: Any) -> bool:
    return item.dtype == dtypes.BOOL or item.dtype == _UINT8


def _dimensions(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if hasattr(item, "_array") and _is_mask(item) else 1


def _to_host(item: Any) -> Any:
    if isinstance(item, list):
        return [_to_host(one) for one in item]
    return item.data if hasattr(item, "_array") else item


def _format_index(index: Any) -> str:
    if isinstance(index, tuple):
        return f"({', '.join(_format_index(item) for item in index)}{',' * (len(index) == 1)})"
    if isinstance(index, slice):
        parts = ["" if p is None else str(p) for p in (index.start, index.stop, index.step)]
        return ":".join(parts if parts[2] else parts[:2])
    return "..." if index is Ellipsis else describe(index)


def _check(of: Tensor, index: Any, call: Any) -> Any:
    """Run `call`; an IndexError of a kernel becomes BadIndex."""
    try:
        return call()
    except BadInput as exc:
        if not isinstance(exc.__cause__, IndexError):
            raise
        raise _index_error(of, index, str(exc.__cause__)) from exc.__cause__


def _index_error(of: Tensor, index: Any, reason: str) -> BadIndex:
    return BadIndex(
        f"cannot index {describe(of)} with {_format_index(index)}: {reason}",
        expected="indices that are in range, in shapes that broadcast",
    )


# ---- assigning


def _as_value(of: Tensor, value: Any) -> Tensor:
    """Convert an assigned value to the tensor's dtype, on its device."""
    if not hasattr(value, "_array"):
        array = host_array(value, None)
        _refuse_complex(of, value, array.dtype)
        return of._new(array)
    _refuse_complex(of, value, value.dtype)
    if not of.device.matches(value.device):
        raise BadInput(
            f"cannot assign {describe(value)} on {value.device} to {describe(of)} on {of.device}",
            expected="both on one device",
            hint=f"value.to({str(of.device)!r})",
        )
    return value if value.dtype == of.dtype else F._to_copy(value, dtype=of.dtype)


def _refuse_complex(of: Tensor, value: Any, kind: Any) -> None:
    if kind.kind == "c" and not dtypes.is_complex(of.dtype):
        raise BadInput(
            f"cannot assign {describe(value)} to {describe(of)}: the imaginary part would be lost",
            expected="real numbers",
            hint="value.real",
        )


def _fit_to(of: Tensor, index: Any, value: Tensor, shape: Any) -> Tensor:
    """Check that a value broadcasts to `shape`; its leading dimensions of size 1 are dropped."""
    if not value.ndim:
        return value
    extra = value.ndim - len(shape)
    if extra > 0 and all(size == 1 for size in value.shape[:extra]):
        value = F.reshape(value, list(value.shape[extra:]))
    try:
        fits = numpy.broadcast_shapes(value.shape, tuple(shape)) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(
            f"cannot assign {describe(value)} to {describe(of)} at {_format_index(index)}: the "
            "shapes do not fit",
            expected=f"a value that broadcasts to {list(shape)}",
        )
    return value


def _chosen_shape(
    of: Tensor, index: Any, view: Tensor, indices: list[Tensor | None]
) -> tuple[int, ...]:
    taken: list[int] = []
    shapes: list[tuple[int, ...]] = []
    dim = 0
    for item in indices:
        count = 1 if item is None else _dimensions(item)
        if item is not None:
            taken += range(dim, dim + count)
            mask = _is_mask(item)
            chosen = (int(numpy.count_nonzero(item.data)),) if mask else tuple(item.shape)
            shapes.append(chosen)
        dim += count
    try:
        chosen = numpy.broadcast_shapes(*shapes)
    except ValueError:
        raise _index_error(of, index, f"the shapes {shapes} do not broadcast") from None
    rest = [size for d, size in enumerate(view.shape) if d not in taken]
    at = taken[0] if taken[-1] - taken[0] == len(taken) - 1 else 0
    return (*rest[:at], *chosen, *rest[at:])


def _assign(of: Tensor, index: Any, steps: Any, indices: Any, value: Tensor) -> None:
    view = of
    for step in steps:
        view = step.apply(view)
    engine = of.device.engine
    _refuse_overlap(of)
    if not indices:
        engine.write(view._array, _fit_to(of, index, value, view.shape)._array)
    else:
        if value.ndim:
            value = _fit_to(of, index, value, _chosen_shape(of, index, view, indices))
        put = OPS["_index_put_impl_"]
        if put.name in engine.kernels:
            arrays = [None if i is None else i._array for i in indices]
            args = [view._array, arrays, value._array]
            _check(of, index, lambda: run(put, engine, args, {}))
        else:
            written = _check(of, index, lambda: F.index_put(view, indices, value))
            engine.write(view._array, written._array)
    of._touch()


def _assign_recorded(of: Tensor, index: Any, steps: Any, indices: Any, value: Tensor) -> None:
    """The tensor becomes a new result, without a gradient for what was overwritten."""
    op = OPS["index_put"]
    refuse_leaf(of, op)
    if of._base is not None:
        raise Misuse(
            f"cannot assign {describe(value)}, which requires a gradient, to {describe(of)}: "
            "that is a view, and what it is a view of would not know",
            expected="a tensor with memory of its own",
            hint="assign to the tensor itself, or clone() the view first",
        )
    _refuse_overlap(of)
    views = [of]
    for step in steps:
        views.append(step.apply(views[-1]))
    if indices:
        if value.ndim:
            value = _fit_to(of, index, value, _chosen_shape(of, index, views[-1], indices))
        made = _check(of, index, lambda: F.index_put(views[-1], indices, value))
    else:
        fitting = _fit_to(of, index, value, views[-1].shape)
        made = F.copy(views[-1], F.expand(fitting, list(views[-1].shape)))
    for step, view in zip(reversed(steps), reversed(views[:-1]), strict=True):
        made = step.undo(view, made)
    assign(op, of, made)


def _refuse_overlap(of: Tensor) -> None:
    if not getattr(getattr(of._array, "flags", None), "writeable", True):
        raise Misuse(
            f"cannot assign to {describe(of)}: several of its elements share memory",
            expected="a tensor with memory of its own",
            hint="clone() first",
        )
