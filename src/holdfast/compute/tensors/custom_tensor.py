"""`CustomTensor` and `AutogradTensor`, running ops on them, and recording these for gradients.

Views share memory with their base. A failed call changes nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from holdfast.base.errors import BadInput, HoldfastError, Misuse
from holdfast.base.threads import register_at_fork
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional
from holdfast.compute.autograd import tape
from holdfast.compute.engine import Engine, each, make_error, run
from holdfast.compute.ops.schema import describe, format_arguments
from holdfast.compute.ops.table import Op
from holdfast.compute.tensor_calls import tensor_calls
from holdfast.compute.tensors import methods, operators
from holdfast.compute.tensors.device import CustomDevice, default_device
from holdfast.compute.tensors.device import device as as_device
from holdfast.compute.tensors.host_data import host_array
from holdfast.compute.tensors.indexing import BadIndex
from holdfast.compute.tensors.inplace import in_place, into
from holdfast.memory.core import stacks

stacks.leave_out(Path(__file__).parents[1])


class CustomTensor(operators.Operators, methods.Methods):
    """An array on a device, with operators and gradients."""

    __array_priority__ = 1000  # NumPy's operators leave the work to ours

    requires_grad = False
    grad: CustomTensor | None = None
    grad_fn: tape.Node | None = None
    device: CustomDevice
    _array: Any
    _place = 0  # which result of grad_fn this is
    _base: CustomTensor | None = None
    _history: tape.Node | None = None  # for a view: the grad_fn of _base when it was made
    _version = 0
    _retained: int | None = None  # the id of the call that keeps .grad here too
    _hooks: list[Callable[[Any], Any]] | None = None

    def __init__(
        self, data: Any, device: Any = None, dtype: Any = None, requires_grad: bool = False
    ) -> None:
        """Copy `data`; float32 unless `dtype` is given."""
        self.device = as_device(device)
        kind = dtypes.FLOAT32 if dtype is None else dtypes.dtype(dtype)
        self._array = self.device.engine.upload(host_array(data, kind))
        if requires_grad:
            self.requires_grad_()

    # ---- creation

    @classmethod
    def _wrap(cls, array: Any, device: CustomDevice) -> CustomTensor:
        made = _new(CustomTensor)
        made._array = array
        made.device = device
        return made

    @classmethod
    def _full(cls, value: float, meta: Any) -> CustomTensor:
        shape, kind, device = meta
        array = numpy.broadcast_to(numpy.asarray(value, kind), shape)
        return cls._wrap(device.engine.upload(array), device)

    @classmethod
    def _zeros_view(cls, meta: Any) -> CustomTensor:
        """Read-only zeros; on the host one element, whatever the shape."""
        shape, kind, device = meta
        if device.engine.name != "numpy":
            return cls._full(0, meta)
        return cls._wrap(numpy.broadcast_to(numpy.zeros((), kind), shape), device)

    @classmethod
    def _copy_to(cls, other: CustomTensor, device: CustomDevice) -> CustomTensor:
        if other.requires_grad and tape.mode.enabled and other.grad_fn is not None:
            raise Misuse(
                f"cannot move {describe(other)} from {other.device} to {device}: gradients would "
                "have to follow it",
                expected="a leaf, or a tensor without gradients",
                hint="detach() first",
            )
        made = cls._wrap(device.engine.upload(other.data), device)
        made.requires_grad = other.requires_grad
        return made

    def _new(self, data: Any, dtype: Any = None) -> CustomTensor:
        """`data` on this tensor's device, in its dtype unless another is given."""
        return CustomTensor(data, self.device, self.dtype if dtype is None else dtype)

    # ---- properties

    @property
    def data(self) -> Any:
        """The elements as a NumPy array, which shares memory with this tensor on the host."""
        return self.device.engine.download(self._array)

    @data.setter
    def data(self, value: Any) -> None:
        array = self.device.engine.upload(host_array(value, self.dtype))
        self._touch()
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> numpy.dtype[Any]:
        return self._array.dtype

    @property
    def ndim(self) -> int:
        return self._array.ndim

    def dim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension. Raises BadIndex."""
        if dim is None:
            return self.shape
        if not -self.ndim <= dim < self.ndim:
            raise BadIndex(
                f"{describe(self)} has no dimension {dim}",
                expected=f"{-self.ndim} to {self.ndim - 1}"
                if self.ndim
                else "none: it is a scalar",
            )
        return self.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return int(numpy.prod(self.shape, dtype=numpy.int64))

    @property
    def is_leaf(self) -> bool:
        """Whether this is not the result of a recorded op."""
        return self.grad_fn is None

    # ---- gradients

    def requires_grad_(self, wanted: bool = True) -> CustomTensor:
        """Require gradients, or stop. Raises BadInput for integers and booleans."""
        if wanted and dtypes.category(self.dtype) < dtypes.FLOATING:
            raise BadInput(
                f"{describe(self)} cannot have a gradient",
                expected="floating-point or complex numbers",
                hint="tensor.to('float32')",
            )
        if not wanted and self.grad_fn is not None:
            raise Misuse(
                "only a leaf can stop requiring gradients; this is the result of "
                f"{self.grad_fn.op.name}",
                hint="detach()",
            )
        self.requires_grad = wanted
        return self

    def detach(self) -> CustomTensor:
        """The same memory, without gradient history."""
        made = self._wrap(self._array, self.device)
        made._base = self._root()
        return made

    def backward(
        self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Add gradients to the `.grad` of every leaf that this tensor was computed from."""
        start = tape.seed(self, gradient)
        tape.backward([self], [start], retain_graph=retain_graph, create_graph=create_graph)

    def retain_grad(self) -> None:
        """Keep `.grad` here too, although this is not a leaf."""
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
        """Call `hook(gradient)` once this tensor's gradient is complete.

        If it returns a tensor, that replaces the gradient. Returns an object whose `remove()`
        removes the hook. Raises Misuse if this tensor requires no gradient.
        """
        if not self.requires_grad:
            raise Misuse(
                f"cannot hook the gradient of {describe(self)}: it does not require one",
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
        """The tensor that owns the memory."""
        return self if self._base is None else self._base

    def _current_version(self) -> int:
        return self._root()._version

    def _touch(self) -> None:
        self._root()._version += 1


_adding = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: a thread of the parent may have held the lock."""
    global _adding
    _adding = threading.RLock()


register_at_fork(after_in_child=_renew_lock)


class Removable:
    """A registered hook."""

    def __init__(self, hooks: list[Any], hook: Any) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Remove the hook; removing it again does nothing."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


_new: Any = object.__new__


class AutogradTensor(CustomTensor):
    """`CustomTensor` with the argument order of specification 003."""

    def __init__(self, data: Any, requires_grad: bool = False, device: Any = None) -> None:
        super().__init__(data, device, requires_grad=requires_grad)


# ---- calling ops


def apply(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an op on tensors; record it if a gradient is required."""
    raw, device, tracked = _unwrap(op, args, kwargs)
    if tracked and tape.mode.enabled:
        if op.gradient:
            return _record(op, args, kwargs, raw, device)
        if op.decomposition is not None:
            return _decompose_tensors(op, args, kwargs)
    if op.decomposition is not None and op.name not in device.engine.kernels:
        return _decompose_tensors(op, args, kwargs)
    result = _wrap_results(op, _run(op, device, raw, args, kwargs), device, args)
    if tracked and tape.mode.enabled and not op.constant:
        _mark_unknown(op, result)
    return result


def _mark_unknown(op: Op, result: Any) -> None:
    """Make backward through an op without a gradient raise, rather than treat it as zero."""
    results = result if isinstance(result, list | tuple) else [result]
    tensors = [r for r in results if isinstance(r, CustomTensor)]
    node = tape.Unknown(op, {}, tensors)
    for one in tensors:
        if dtypes.category(one.dtype) >= dtypes.FLOATING:
            one.requires_grad, one.grad_fn = True, node


def _run(op: Op, device: CustomDevice, raw: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Compute on arrays; if the call failed because the arguments do not fit, say so."""
    try:
        return run(op, device.engine, raw[0], raw[1])
    except BadInput as exc:
        unexplained = isinstance(exc.__cause__, TypeError | AttributeError | None)
        # If `expected` is the signature, `bind` has raised a better error already.
        if unexplained and exc.expected != op.schema.text and not _accepts(op, args, kwargs):
            raise _signature_error(op, args, kwargs) from exc
        raise


def _accepts(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the signature allows these arguments; arrays count as tensors."""
    given = [CustomTensor(0) if isinstance(a, numpy.ndarray) else a for a in args]
    return op.schema.fits(given, kwargs)


def _signature_error(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> BadInput:
    what = f"cannot call {op.name}({format_arguments(args, kwargs)})"
    return BadInput(what, expected=op.schema.text)


def _decompose_tensors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute an op by its decomposition; its errors become BadInput."""
    decomposition: Any = op.decomposition
    try:
        return decomposition(*args, **kwargs)
    except HoldfastError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError) as exc:
        if isinstance(exc, TypeError) and not _accepts(op, args, kwargs):
            raise _signature_error(op, args, kwargs) from exc
        raise make_error(op, args, kwargs, exc) from exc


def _unwrap(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """(args, kwargs) with arrays for tensors, their device, and whether one requires a gradient."""
    found: list[CustomTensor] = []
    raw = (
        [_unwrap_value(a, found) for a in args],
        {k: _unwrap_value(v, found) for k, v in kwargs.items()},
    )
    if not found:
        return raw, default_device(), False
    device, tracked = found[0].device, False
    for one in found:
        if one.device is not device and not device.matches(one.device):
            raise _device_error(op, args, kwargs)
        tracked = tracked or one.requires_grad
    return raw, device, tracked


def _unwrap_value(value: Any, found: list[CustomTensor]) -> Any:
    if isinstance(value, CustomTensor):
        found.append(value)
        return value._array
    if type(value) is list or type(value) is tuple:
        return [_unwrap_value(v, found) for v in value]
    return value


def _wrap_results(op: Op, out: Any, device: CustomDevice, args: Sequence[Any]) -> Any:
    if hasattr(out, "ndim"):
        made = _new(CustomTensor)
        made._array = out
        made.device = device
        if op.schema.view:
            source = args[0]
            made._base = source if source._base is None else source._base
        return made
    if isinstance(out, list | tuple):
        return type(out)(_wrap_results(op, one, device, args) for one in out)
    return out


def _record(op: Op, args: Any, kwargs: Any, raw: Any, device: CustomDevice) -> Any:
    bound = op.schema.bind(args, kwargs)
    result = _wrap_results(op, _run(op, device, raw, args, kwargs), device, args)
    results = [result] if isinstance(result, CustomTensor) else list(result)
    wanted = any(
        t.requires_grad for name in tape.recipe(op).inputs for t in tape._tensors_of(bound[name])
    )
    node = None
    for place, one in enumerate(results):
        if wanted and tape.differentiable(op, place, one):
            node = node or tape.Node(op, bound, results)
            one.requires_grad, one.grad_fn, one._place = True, node, place
            if one._base is not None:
                one._history = one._base.grad_fn
    return result


def decompose(op: Op, engine: Engine, args: Any, kwargs: Any) -> Any:
    """Compute an op that has no kernel, on arrays, by its decomposition."""
    device = CustomDevice.of(engine)
    up = lambda v: each(v, lambda a: CustomTensor._wrap(a, device))  # noqa: E731
    apart: Any = op.decomposition
    with tape.no_grad():
        out = apart(*map(up, args), **{k: up(v) for k, v in kwargs.items()})
    return each(out, lambda tensor: tensor._array)


def _device_error(op: Op, args: Any, kwargs: Any) -> BadInput:
    tensors = [t for v in (*args, *kwargs.values()) for t in tape._tensors_of(v)]
    places = ", ".join(f"{describe(t)} on {t.device}" for t in tensors)
    return BadInput(
        f"cannot compute {op.name}: its tensors are on several devices ({places})",
        expected="all on one device",
        hint=f"tensor.to({str(tensors[0].device)!r})",
    )


operators.bind(CustomTensor)
methods.install(CustomTensor, in_place)
tensor_calls.register(apply=apply, into=into, in_place=in_place, decompose=decompose)
