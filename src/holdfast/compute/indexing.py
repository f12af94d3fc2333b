"""Python's brackets for tensors: `tensor[index]` and `tensor[index] = value`.

Covers: whole numbers, slices, None, `...`, truth values, masks, lists of numbers, and mixtures.
Leaves to others: choosing and writing themselves (the table's ops), so gradients too.
Promise: numbers, slices and None give views; everything else gives a tensor of its own. What is
assigned lands in the tensor's own memory, so that every view of it sees it.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import autograd
from holdfast.compute import dtype as formats
from holdfast.compute import functional as F
from holdfast.compute.engine import described, run
from holdfast.compute.ops import OPS
from holdfast.compute.tensors import CustomTensor, assign, host_array, refuse_leaf

_UINT8 = formats.DTYPES["uint8"]
_KINDS = "whole numbers, slices, None, ..., truth values, or tensors and lists of these"


class BadIndex(BadInput, IndexError):
    """An index that a tensor does not have."""


class Step(NamedTuple):
    """One basic step towards what is indexed: an op that gives a view, and its arguments."""

    name: str
    args: tuple[Any, ...]

    def apply(self, of: CustomTensor) -> CustomTensor:
        """The view."""
        return getattr(F, self.name)(of, *self.args)

    def undo(self, of: CustomTensor, part: CustomTensor) -> CustomTensor:
        """`of` with `part` in the place of the view."""
        if self.name == "unsqueeze":
            return F.squeeze(part, *self.args)
        return getattr(F, f"{self.name}_scatter")(of, part, *self.args)


def getitem(of: CustomTensor, index: Any) -> CustomTensor:
    """`of[index]`. Raises BadIndex."""
    if type(index) is int and of.ndim and -of.shape[0] <= index < of.shape[0]:
        return F.select(of, 0, index)
    steps, indices = _Reader(of, index).read()
    found = of
    for step in steps:
        found = step.apply(found)
    if indices:
        return _checked(of, index, lambda: F.index(found, indices))
    return F.alias(of) if found is of else found


def setitem(of: CustomTensor, index: Any, value: Any) -> None:
    """`of[index] = value`, in place. Raises BadIndex, and Misuse where gradients forbid it."""
    steps, indices = _Reader(of, index).read()
    asks = of.requires_grad or getattr(value, "requires_grad", False)
    given = _as_value(of, value)
    if asks and autograd.is_grad_enabled():
        _assign_noted(of, index, steps, indices, given)
        return
    with autograd.no_grad():
        _assign(of, index, steps, indices, given)


# ---- reading an index


class _Reader:
    """Goes through an index from left to right, and keeps the sizes of the view so far."""

    def __init__(self, of: CustomTensor, index: Any) -> None:
        self.of, self.index = of, index
        self.sizes = list(of.shape)
        self.dim = 0  # of the view so far
        self.source = 0  # of the tensor itself, for errors
        self.steps: list[Step] = []
        self.indices: list[CustomTensor | None] = []
        self.covered = 0  # dimensions that `indices` speaks of

    def read(self) -> tuple[list[Step], list[CustomTensor | None]]:
        given = self.index if isinstance(self.index, tuple) else (self.index,)
        items = [self._plain(item) for item in given]
        asked = sum(_dimensions(item) for item in items)
        if asked > self.of.ndim:
            raise self.refused(f"{asked} indices are too many", f"at most {self.of.ndim}")
        if sum(item is Ellipsis for item in items) > 1:
            raise self.refused("... stands there twice", "it once, for all that is left out")
        for item in items:
            self._take(item, self.of.ndim - asked)
        return self.steps, self.indices

    def _plain(self, item: Any) -> Any:
        """An item as None, Ellipsis, a slice, an int, a bool or a tensor with dimensions."""
        if item is None or item is Ellipsis or isinstance(item, slice | bool | int):
            return item
        if isinstance(item, numpy.integer | numpy.bool_):
            return item.item()
        if isinstance(item, CustomTensor):
            made = item
        elif isinstance(item, list | range | numpy.ndarray) or hasattr(item, "detach"):
            made = self._uploaded(item)
        else:
            raise self.refused(f"it contains a {type(item).__name__}", _KINDS)
        if formats.category(made.dtype) > formats.INTEGER:
            raise self.refused(f"it contains {described(made)}", _KINDS)
        if made.ndim:
            return made
        return bool(made.data) if _is_mask(made) else int(made.data)

    def _uploaded(self, item: Any) -> CustomTensor:
        array = host_array(_without_tensors(item), None)
        kind = formats.INT64 if not array.size and isinstance(item, list) else array.dtype
        return CustomTensor(array, self.of.device, kind)

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
            self._choose(CustomTensor(chosen, self.of.device, formats.INT64), 1)
            self.source -= 1  # the dimension was not there before
        elif isinstance(item, int):
            self._select(item)
        elif isinstance(item, slice):
            self._slice(item)
        else:
            self._choose(item, item.ndim if _is_mask(item) else 1)

    def _unsqueeze(self) -> None:
        self.steps.append(Step("unsqueeze", (self.dim,)))
        self.sizes.insert(self.dim, 1)

    def _select(self, item: int) -> None:
        size = self.sizes[self.dim]
        if not -size <= item < size:
            raise self.refused(
                f"{item} is out of range",
                f"{-size} to {size - 1}" if size else "no number: it is empty",
            )
        self.steps.append(Step("select", (self.dim, item)))
        del self.sizes[self.dim]
        self.source += 1

    def _slice(self, item: slice) -> None:
        size = self.sizes[self.dim]
        if item != slice(None):
            start, stop, step = (self._whole(one) for one in (item.start, item.stop, item.step))
            if step is not None and step <= 0:
                raise self.refused(
                    f"the step {step} is not positive", "a step of 1 or more, or flip()"
                )
            first, last, step = slice(start, stop, step).indices(size)
            last = max(first, last)
            self.steps.append(Step("slice", (self.dim, first, last, step)))
            self.sizes[self.dim] = -((first - last) // step)
        self.dim += 1
        self.source += 1

    def _whole(self, bound: Any) -> int | None:
        if isinstance(bound, CustomTensor):
            bound = bound.data.item()
        try:
            return None if bound is None else operator.index(bound)
        except TypeError:
            raise self.refused(f"{bound!r} bounds a slice", "whole numbers, or nothing") from None

    def _choose(self, item: CustomTensor, count: int) -> None:
        there = self.sizes[self.dim : self.dim + count]
        if _is_mask(item) and list(item.shape) != there:
            raise self.refused(
                f"the mask {described(item)} does not fit", f"a mask of shape {there}"
            )
        self.indices += [None] * (self.dim - self.covered)
        self.indices.append(item)
        self.dim += count
        self.source += count
        self.covered = self.dim

    def refused(self, reason: str, expected: str) -> BadIndex:
        at = f" at dimension {self.source}" if self.source else ""
        return BadIndex(
            f"cannot index {described(self.of)} with {_shown(self.index)}: {reason}{at}",
            expected=expected,
        )


def _is_mask(item: Any) -> bool:
    return item.dtype == formats.BOOL or item.dtype == _UINT8


def _dimensions(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, CustomTensor) and _is_mask(item) else 1


def _without_tensors(item: Any) -> Any:
    if isinstance(item, list):
        return [_without_tensors(one) for one in item]
    return item.data if isinstance(item, CustomTensor) else item


def _shown(index: Any) -> str:
    if isinstance(index, tuple):
        return f"({', '.join(_shown(item) for item in index)}{',' * (len(index) == 1)})"
    if isinstance(index, slice):
        parts = ["" if p is None else str(p) for p in (index.start, index.stop, index.step)]
        return ":".join(parts if parts[2] else parts[:2])
    return "..." if index is Ellipsis else described(index)


def _checked(of: CustomTensor, index: Any, call: Any) -> Any:
    """What a call of the table returns; an index it does not like becomes a BadIndex."""
    try:
        return call()
    except BadInput as exc:
        if not isinstance(exc.__cause__, IndexError):
            raise
        raise _apart(of, index, str(exc.__cause__)) from exc.__cause__


def _apart(of: CustomTensor, index: Any, reason: str) -> BadIndex:
    return BadIndex(
        f"cannot index {described(of)} with {_shown(index)}: {reason}",
        expected="indices that are in range, in shapes that broadcast",
    )


# ---- assigning


def _as_value(of: CustomTensor, value: Any) -> CustomTensor:
    """What is assigned, in the format of the tensor and on its device."""
    if not isinstance(value, CustomTensor):
        array = host_array(value, None)
        _refuse_complex(of, value, array.dtype)
        return CustomTensor(array, of.device, of.dtype)
    _refuse_complex(of, value, value.dtype)
    if not of.device.matches(value.device):
        raise BadInput(
            f"cannot assign {described(value)} on {value.device} to {described(of)} on {of.device}",
            expected="both on one device",
            hint=f"value.to({str(of.device)!r})",
        )
    return value if value.dtype == of.dtype else F._to_copy(value, dtype=of.dtype)


def _refuse_complex(of: CustomTensor, value: Any, kind: Any) -> None:
    if kind.kind == "c" and not formats.is_complex(of.dtype):
        raise BadInput(
            f"cannot assign {described(value)} to {described(of)}: the imaginary part has no place",
            expected="real numbers",
            hint="value.real",
        )


def _without_ones(value: CustomTensor, ndim: int) -> CustomTensor:
    """A value of at most `ndim` dimensions, if those it has too many are of size 1."""
    extra = value.ndim - ndim
    if extra <= 0 or any(size != 1 for size in value.shape[:extra]):
        return value
    return F.reshape(value, list(value.shape[extra:]))


def _fitting(of: CustomTensor, index: Any, value: CustomTensor, shape: Any) -> CustomTensor:
    """A value that broadcasts to `shape`; sizes of 1 in front of it do not matter."""
    if not value.ndim:
        return value
    value = _without_ones(value, len(shape))
    try:
        fits = numpy.broadcast_shapes(value.shape, tuple(shape)) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(
            f"cannot assign {described(value)} to {described(of)} at {_shown(index)}: the shapes "
            "do not fit",
            expected=f"a value that broadcasts to {list(shape)}",
        )
    return value


def _chosen_shape(
    of: CustomTensor, index: Any, view: CustomTensor, indices: list[CustomTensor | None]
) -> tuple[int, ...]:
    """The shape of view[indices]."""
    taken: list[int] = []
    shapes: list[tuple[int, ...]] = []
    dim = 0
    for item in indices:
        count = 1 if item is None else _dimensions(item)
        if item is not None:
            taken += range(dim, dim + count)
            shapes.append(_length_of_mask(item) if _is_mask(item) else tuple(item.shape))
        dim += count
    try:
        chosen = numpy.broadcast_shapes(*shapes)
    except ValueError:
        raise _apart(of, index, f"the shapes {shapes} do not broadcast") from None
    rest = [size for d, size in enumerate(view.shape) if d not in taken]
    at = taken[0] if taken[-1] - taken[0] == len(taken) - 1 else 0
    return (*rest[:at], *chosen, *rest[at:])


def _length_of_mask(mask: CustomTensor) -> tuple[int, ...]:
    return (int(numpy.count_nonzero(mask.data)),)


def _fitting_chosen(
    of: CustomTensor, index: Any, value: CustomTensor, view: CustomTensor, indices: Any
) -> CustomTensor:
    if not value.ndim:
        return value
    return _fitting(of, index, value, _chosen_shape(of, index, view, indices))


def _assign(of: CustomTensor, index: Any, steps: Any, indices: Any, value: CustomTensor) -> None:
    view = of
    for step in steps:
        view = step.apply(view)
    engine = of.device.engine
    _refuse_overlap(of)
    if not indices:
        engine.write(view._array, _fitting(of, index, value, view.shape)._array)
    else:
        value = _fitting_chosen(of, index, value, view, indices)
        put = OPS["_index_put_impl_"]
        if put.name in engine.kernels:
            arrays = [None if i is None else i._array for i in indices]
            args = [view._array, arrays, value._array]
            _checked(of, index, lambda: run(put, engine, args, {}))
        else:
            written = _checked(of, index, lambda: F.index_put(view, indices, value))
            engine.write(view._array, written._array)
    of._touch()


def _assign_noted(
    of: CustomTensor, index: Any, steps: Any, indices: Any, value: CustomTensor
) -> None:
    """The tensor goes on as a new result, whose gradient is none for what was overwritten."""
    op = OPS["index_put"]
    refuse_leaf(of, op)
    if of._base is not None:
        raise Misuse(
            f"cannot assign {described(value)}, which requires a gradient, to {described(of)}: "
            "that is a view, and what it is a view of would not know",
            expected="a tensor with memory of its own",
            hint="assign to the tensor itself, or clone() the view first",
        )
    _refuse_overlap(of)
    views = [of]
    for step in steps:
        views.append(step.apply(views[-1]))
    if indices:
        value = _fitting_chosen(of, index, value, views[-1], indices)
        made = _checked(of, index, lambda: F.index_put(views[-1], indices, value))
    else:
        fitting = _fitting(of, index, value, views[-1].shape)
        made = F.copy(views[-1], F.expand(fitting, list(views[-1].shape)))
    for step, view in zip(reversed(steps), reversed(views[:-1]), strict=True):
        made = step.undo(view, made)
    assign(op, of, made)


def _refuse_overlap(of: CustomTensor) -> None:
    if not getattr(getattr(of._array, "flags", None), "writeable", True):
        raise Misuse(
            f"cannot assign to {described(of)}: several of its elements are one place in memory",
            expected="a tensor with memory of its own",
            hint="clone() first",
        )
