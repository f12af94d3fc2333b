"""Tensors that need no torch: `CustomTensor`, `AutogradTensor`.

Covers: making them, what they are, calling ops.
Leaves to others: computing (engines), gradients (autograd), in-place forms (changes), the ops'
own rules (ops).
Promise: views share memory with what they are a view of; what is noted for gradients is never
changed unnoticed; a failed call changes nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.errors import BadInput, HoldfastError, Misuse
from holdfast.compute import autograd, functional, methods, operators
from holdfast.compute import dtype as formats
from holdfast.compute.changes import assign, in_place, into, refuse_leaf  # noqa: F401
from holdfast.compute.device import CustomDevice, default_device
from holdfast.compute.device import device as as_device
from holdfast.compute.engine import Engine, each, refused, run
from holdfast.compute.ops.table import Op
from holdfast.compute.schema import described
from holdfast.memory import stacks

stacks.leave_out(Path(__file__).parent)


class CustomTensor(operators.Operators, methods.Methods):
    """An array on a device, with operators, and gradients where they are asked for."""

    __array_priority__ = 1000  # NumPy's operators leave the work to ours

    requires_grad = False
    grad: CustomTensor | None = None
    grad_fn: autograd.Node | None = None
    device: CustomDevice
    _array: Any
    _place = 0  # which result of grad_fn this is
    _base: CustomTensor | None = None
    _history: autograd.Node | None = None  # for a view: the grad_fn of _base when it was made
    _version = 0
    _retained: int | None = None  # the id of the call that keeps .grad here too
    _hooks: list[Callable[[Any], Any]] | None = None

    def __init__(
        self, data: Any, device: Any = None, dtype: Any = None, requires_grad: bool = False
    ) -> None:
        """A copy of `data`, in float32 unless `dtype` says otherwise."""
        self.device = as_device(device)
        kind = formats.FLOAT32 if dtype is None else formats.dtype(dtype)
        self._array = self.device.engine.upload(host_array(data, kind))
        if requires_grad:
            self.requires_grad_()

    # ---- making

    @classmethod
    def _wrap(cls, array: Any, device: CustomDevice) -> CustomTensor:
        made = _new(CustomTensor)
        made._array = array
        made.device = device
        return made

    @classmethod
    def _filled(cls, value: float, meta: Any) -> CustomTensor:
        shape, kind, device = meta
        array = numpy.broadcast_to(numpy.asarray(value, kind), shape)
        return cls._wrap(device.engine.upload(array), device)

    @classmethod
    def _nothing(cls, meta: Any) -> CustomTensor:
        """Zeros to read, one number in the host's memory whatever the shape."""
        shape, kind, device = meta
        if device.engine.name != "numpy":
            return cls._filled(0, meta)
        return cls._wrap(numpy.broadcast_to(numpy.zeros((), kind), shape), device)

    @classmethod
    def _moved_from(cls, other: CustomTensor, device: CustomDevice) -> CustomTensor:
        if other.requires_grad and autograd.mode.enabled and other.grad_fn is not None:
            raise Misuse(
                f"cannot move {described(other)} from {other.device} to {device}: gradients would "
                "have to follow it",
                expected="a leaf, or a tensor without gradients",
                hint="detach() first",
            )
        made = cls._wrap(device.engine.upload(other.data), device)
        made.requires_grad = other.requires_grad
        return made

    def _new(self, data: Any) -> CustomTensor:
        """`data` in this tensor's format, on its device."""
        return CustomTensor(data, self.device, self.dtype)

    # ---- what it is

    @property
    def data(self) -> Any:
        """The numbers as a NumPy array, which shares memory with this tensor where it can."""
        return self.device.engine.download(self._array)

    @data.setter
    def data(self, value: Any) -> None:
        array = self.device.engine.upload(host_array(value, self.dtype))
        self._touch()
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self._array.shape

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The number format."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return self._array.ndim

    def dim(self) -> int:
        """How many dimensions."""
        return self._array.ndim

    def size(self, dim: int | None = None) -> Any:
        """Sizes, or one of them. Raises BadIndex for a dimension that is not there."""
        if dim is None:
            return self.shape
        if not -self.ndim <= dim < self.ndim:
            from holdfast.compute.indexing import BadIndex

            raise BadIndex(
                f"{described(self)} has no dimension {dim}",
                expected=f"{-self.ndim} to {self.ndim - 1}"
                if self.ndim
                else "none: it is a single number",
            )
        return self.shape[dim]

    def numel(self) -> int:
        """How many numbers."""
        return int(numpy.prod(self.shape, dtype=numpy.int64))

    @property
    def is_leaf(self) -> bool:
        """Not the result of a noted op."""
        return self.grad_fn is None

    # ---- gradients

    def requires_grad_(self, wanted: bool = True) -> CustomTensor:
        """Ask for gradients, or no longer. Raises BadInput for whole numbers."""
        if wanted and formats.category(self.dtype) < formats.FLOATING:
            raise BadInput(
                f"{described(self)} cannot have a gradient",
                expected="floating-point or complex numbers",
                hint="tensor.to('float32')",
            )
        if not wanted and self.grad_fn is not None:
            raise Misuse(
                "only a leaf can stop asking for gradients; this is the result of "
                f"{self.grad_fn.op.name}",
                hint="detach()",
            )
        self.requires_grad = wanted
        return self

    def detach(self) -> CustomTensor:
        """The same numbers, outside of all gradients."""
        made = self._wrap(self._array, self.device)
        made._base = self if self._base is None else self._base
        return made

    def backward(
        self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add this tensor's gradients to the `.grad` of every leaf it was computed from."""
        start = autograd.seed(self, gradient)
        autograd.backward([self], [start], retain_graph=retain_graph, create_graph=create_graph)

    def retain_grad(self) -> None:
        """Keep `.grad` here too, although this is no leaf."""
        if self.grad_fn is None or self._retained == id(self.grad_fn):
            return
        call = self._retained = id(self.grad_fn)
        known = weakref.ref(self)

        def keep(gradient: CustomTensor) -> None:
            tensor = known()
            if tensor is not None and tensor._retained == call:
                tensor._accumulate(gradient)

        self.grad_fn.watch(self._place, keep)

    def register_hook(self, hook: Callable[[Any], Any]) -> Removable:
        """Call `hook(gradient)` when all of this tensor's gradient is there.

        What it returns, if it is not None, takes the gradient's place. `remove()` of what this
        returns takes the hook away. Raises Misuse where there are no gradients.
        """
        if not self.requires_grad:
            raise Misuse(
                f"cannot hook the gradient of {described(self)}: it does not require one",
                expected="a tensor with requires_grad=True, or a result of one",
            )
        if self.grad_fn is not None:
            self.grad_fn.watch(self._place, hook)
            return Removable((self.grad_fn.hooks or {})[self._place], hook)
        self._hooks = self._hooks or []
        self._hooks.append(hook)
        return Removable(self._hooks, hook)

    def _accumulate(self, gradient: CustomTensor) -> None:
        with _adding:  # threads may go backward to the same leaf
            if self.grad is None:
                # A gradient may be shared with another leaf, or be a broadcast view.
                self.grad = functional.clone(gradient)
            else:
                self.grad = self.grad + gradient

    def _root(self) -> CustomTensor:
        """Whose memory this is."""
        return self if self._base is None else self._base

    def _current_version(self) -> int:
        return self._root()._version

    def _touch(self) -> None:
        root = self._root()
        root._version = root._version + 1


_adding = threading.RLock()


def _renew_lock() -> None:
    """In the child of a fork: another thread may have held the lock, and is not here."""
    global _adding
    _adding = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class Removable:
    """A hook that can be taken away again."""

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Take it away; once is enough, more does no harm."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


_new: Any = object.__new__
operators.bind(CustomTensor)


class AutogradTensor(CustomTensor):
    """A `CustomTensor` made with `requires_grad`, as specification 003 names it."""

    def __init__(self, data: Any, requires_grad: bool = False, device: Any = None) -> None:
        super().__init__(data, device, requires_grad=requires_grad)


# ---- calling ops


def apply(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an op on tensors, and note it where a gradient is wanted."""
    raw, device, tracked = _unwrapped(op, args, kwargs)
    if tracked and autograd.mode.enabled:
        if op.gradient:
            return _noted(op, args, kwargs, raw, device)
        if op.decomposition is not None:
            return _taken_apart(op, args, kwargs)
    if op.decomposition is not None and op.name not in device.engine.kernels:
        return _taken_apart(op, args, kwargs)
    result = _wrapped(op, _run(op, device, raw, args, kwargs), device, args)
    if tracked and autograd.mode.enabled and not op.constant:
        _mark_unknown(op, result)
    return result


def _mark_unknown(op: Op, result: Any) -> None:
    """Have a backward through an op without a gradient refused, rather than taken for zero."""
    results = [result] if isinstance(result, CustomTensor) else result
    if not isinstance(results, list | tuple):
        return
    node = autograd.Unknown(op, {}, [r for r in results if isinstance(r, CustomTensor)])
    for one in results:
        if isinstance(one, CustomTensor) and formats.category(one.dtype) >= formats.FLOATING:
            one.requires_grad, one.grad_fn = True, node


def _run(op: Op, device: CustomDevice, raw: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Compute on arrays; arguments that the op does not take are an error of the call."""
    try:
        return run(op, device.engine, raw[0], raw[1])
    except BadInput as exc:
        unexplained = isinstance(exc.__cause__, TypeError | AttributeError | None)
        # `bind` has said it better already where the signature stands in the error.
        if unexplained and exc.expected != op.schema.text and not _takes(op, args, kwargs):
            raise _misfit(op, args, kwargs) from exc
        raise


def _takes(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the signature allows such arguments; an array goes for a tensor."""
    given = [CustomTensor(0) if isinstance(a, numpy.ndarray) else a for a in args]
    return op.schema.fits(given, kwargs)


def _misfit(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> BadInput:
    shown = [described(a) for a in args] + [f"{k}={described(v)}" for k, v in kwargs.items()]
    return BadInput(f"cannot call {op.name}({', '.join(shown)})", expected=op.schema.text)


def _taken_apart(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an op by its decomposition; what that cannot make sense of becomes BadInput."""
    decomposition: Any = op.decomposition
    try:
        return decomposition(*args, **kwargs)
    except HoldfastError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError) as exc:
        if isinstance(exc, TypeError) and not _takes(op, args, kwargs):
            raise _misfit(op, args, kwargs) from exc
        raise refused(op, args, kwargs, exc) from exc


def _unwrapped(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Arguments with arrays for tensors, where they are, and whether one requires a gradient."""
    found: list[CustomTensor] = []
    raw = [_down(a, found) for a in args], {k: _down(v, found) for k, v in kwargs.items()}
    if not found:
        return raw, default_device(), False
    device, tracked = found[0].device, False
    for one in found:
        if one.device is not device and not device.matches(one.device):
            raise _apart(op, args, kwargs)
        tracked = tracked or one.requires_grad
    return raw, device, tracked


def _down(value: Any, found: list[CustomTensor]) -> Any:
    if isinstance(value, CustomTensor):
        found.append(value)
        return value._array
    if type(value) is list or type(value) is tuple:
        return [_down(v, found) for v in value]
    return value


def _wrapped(op: Op, out: Any, device: CustomDevice, args: Sequence[Any]) -> Any:
    if hasattr(out, "ndim"):
        made = _new(CustomTensor)
        made._array = out
        made.device = device
        if op.schema.view:
            source = args[0]
            made._base = source if source._base is None else source._base
        return made
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(op, one, device, args) for one in out)
    return out


def _noted(op: Op, args: Any, kwargs: Any, raw: Any, device: CustomDevice) -> Any:
    bound = op.schema.bind(args, kwargs)
    result = _wrapped(op, _run(op, device, raw, args, kwargs), device, args)
    results = [result] if isinstance(result, CustomTensor) else list(result)
    wanted = any(
        t.requires_grad
        for name in autograd.recipe(op).inputs
        for t in autograd._tensors_of(bound[name])
    )
    node = None
    for place, one in enumerate(results):
        if wanted and autograd.differentiable(op, place, one):
            node = node or autograd.Node(op, bound, results)
            one.requires_grad, one.grad_fn, one._place = True, node, place
            if one._base is not None:
                one._history = one._base.grad_fn
    return result


def decomposed(op: Op, engine: Engine, args: Any, kwargs: Any) -> Any:
    """Compute an op that has no kernel, on arrays, by its decomposition."""
    device = CustomDevice.of(engine)
    up = lambda v: each(v, lambda a: CustomTensor._wrap(a, device))  # noqa: E731
    apart: Any = op.decomposition
    with autograd.no_grad():
        out = apart(*map(up, args), **{k: up(v) for k, v in kwargs.items()})
    return _arrays(out)


def _arrays(out: Any) -> Any:
    if isinstance(out, CustomTensor):
        return out._array
    if isinstance(out, list | tuple):
        return type(out)(_arrays(one) for one in out)
    return out


def _apart(op: Op, args: Any, kwargs: Any) -> BadInput:
    tensors = [t for v in (*args, *kwargs.values()) for t in autograd._tensors_of(v)]
    places = ", ".join(f"{described(t)} on {t.device}" for t in tensors)
    return BadInput(
        f"cannot compute {op.name}: its tensors are on several devices ({places})",
        expected="all on one device",
        hint=f"tensor.to({str(tensors[0].device)!r})",
    )


# ---- data from elsewhere


def host_array(data: Any, kind: numpy.dtype[Any] | None) -> Any:
    """Anything with numbers as an array of the host. Raises BadInput."""
    if isinstance(data, CustomTensor):
        data = data.data
    elif hasattr(data, "detach"):  # a torch tensor
        data = _from_torch(data.detach().cpu())
    try:
        array = numpy.asarray(data)
        if array.dtype.kind in "OUSMm":
            raise ValueError("rows of different lengths, or no numbers")
        if kind is None or array.dtype == kind:
            return array
        _check_numbers(array, kind, isinstance(data, list | tuple | int | float))
        return array.astype(kind)
    except (ValueError, TypeError) as exc:
        raise BadInput(
            f"cannot make a tensor of {type(data).__name__}: {exc}",
            expected="numbers, in rows of one length, or an array",
        ) from exc


def _check_numbers(array: Any, kind: numpy.dtype[Any], plain: bool) -> None:
    """Raise ValueError where another format would make other numbers of these, unasked."""
    before, after = array.dtype.kind, kind.kind
    if before == "c" and after not in "cb":
        raise ValueError(f"complex numbers have no place in {kind}")
    if after not in "iu" or not array.size:
        return
    if before == "f" and not numpy.isfinite(array).all():
        raise ValueError(f"NaN and infinity have no place in {kind}")
    ends = numpy.iinfo(kind)
    if plain and before in "iu" and not ends.min <= array.min() <= array.max() <= ends.max:
        raise ValueError(f"{kind} goes from {ends.min} to {ends.max}")


def _from_torch(data: Any) -> Any:
    """NumPy cannot read torch's narrow formats and its lazy conjugates by itself."""
    kind = formats.dtype(data.dtype)
    if kind in formats.NARROW and kind != formats.FLOAT16:
        return data.float().numpy().astype(kind)
    return data.resolve_conj().resolve_neg()


methods.install(CustomTensor, in_place)
