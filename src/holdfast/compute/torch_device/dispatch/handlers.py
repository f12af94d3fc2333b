"""What torch calls for an overload: arrays out of tensors, the op of the table, tensors again.

Handles the functional, in-place and out= form, with a fast path for NumPy's float32 and float64.
An in-place form changes its tensor only when the whole result is there.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch

from holdfast.base.errors import HoldfastError
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.api.engine_choice import choice
from holdfast.compute.torch_device.dispatch import engine_dispatch, fallback, resolve
from holdfast.compute.torch_device.dispatch import out_args as outs
from holdfast.compute.torch_device.error_translation import to_torch_error
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.storage import remote_storage, tensor_bridge
from holdfast.compute.torch_device.storage.tensor_bridge import as_array, as_tensor

Handler = Callable[..., Any]
_ndarray, _asarray = numpy.ndarray, numpy.asarray
_Tensor = torch.Tensor
_FLOAT32, _FLOAT64 = dtypes.FLOAT32, dtypes.FLOAT64

# These promote dtypes too, in their kernels instead of the rule.
_PROMOTING = ("addr", "div.Tensor_mode", "div.Scalar_mode")
# These write one value everywhere: elements may share memory.
_FILLING = ("fill", "zero")
# Their indices may be on the CPU, as in torch; other ops take only scalars from there.
_INDICES_FROM_CPU = ("index", "_index_put_impl_", "index_put", "_unsafe_index", "_unsafe_index_put")


class _Lowering(dict[type, Callable[[Any], Any]]):
    """Converts arguments for kernels, by type; `tensor` converts tensors."""

    def __init__(self, tensor: Callable[[torch.Tensor], Any]) -> None:
        self[torch.Tensor] = self[torch.nn.Parameter] = self.tensor = tensor

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        how: Callable[[Any], Any] = _same
        if issubclass(kind, torch.Tensor):
            how = self.tensor
        elif issubclass(kind, list | tuple):
            how = self.several
        elif kind is torch.dtype:
            how = tensor_bridge.TO_NUMPY.__getitem__
        self[kind] = how
        return how

    def several(self, values: Any) -> Any:
        return [self[type(v)](v) for v in values]


def _same(value: Any) -> Any:
    return value


_lower, _lower_any = _Lowering(as_array), _Lowering(tensor_bridge.as_array_any)


def handler(overload: Any) -> Handler:
    """A function that computes an overload on the device."""
    op, form = resolve.counterpart(overload)
    if op is None:
        return fallback.handler(overload)
    if form == resolve.FUNCTIONAL:
        return _functional(overload, op)
    return (_in_place if form == resolve.IN_PLACE else _out)(overload, op)


def _raise_error(out: Any) -> Any:
    if type(out) is _ndarray:
        return as_tensor(out)
    if isinstance(out, list | tuple):
        return type(out)(_raise_error(one) for one in out)
    if remote_storage.is_remote(out):
        return remote_storage.as_tensor(out)
    return as_tensor(numpy.asarray(out)) if isinstance(out, numpy.generic) else out


def _functional(overload: Any, op: Op) -> Handler:
    compute = _computer(overload, op)

    def general(*args: Any, **kwargs: Any) -> Any:
        out = compute(args, kwargs)
        return as_tensor(out) if type(out) is _ndarray else _raise_error(out)

    engine = ENGINES["numpy"]
    kernel = engine.kernels.get(op.name)
    if kernel is None or op.rule.kind is None or op.rule.kind == "bool":
        return general
    needed = [a for a in overload._schema.arguments if not a.has_default_value()]
    if not needed or str(needed[0].type) != "Tensor" or len(needed) > 2:
        return general
    if any(a.kwarg_only for a in needed):
        return general
    quick = _FOR_FLOATS.get(op.name, kernel)
    return (_unary if len(needed) == 1 else _binary)(engine, quick, general)


# The ufuncs that kernels are, for floats without options.
_FOR_FLOATS: dict[str, Handler] = {"add.Tensor": numpy.add, "add.Scalar": numpy.add}
_FOR_FLOATS |= {"sub.Tensor": numpy.subtract, "sub.Scalar": numpy.subtract}


def _unary(engine: Any, kernel: Handler, general: Handler) -> Handler:
    """A fast path for one float32 or float64 tensor and no options."""
    call = engine.quick

    def unary(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return general(tensor, *args, **kwargs)
        array = as_array(tensor)
        kind = array.dtype
        if (kind is _FLOAT32 or kind is _FLOAT64) and type(array) is _ndarray:
            try:
                out = call(kernel, array)
            except MemoryError:  # the general path frees memory, or raises a better error
                return general(tensor)
            if out.dtype is kind:  # ufuncs return scalars for arrays without dimensions
                return as_tensor(out if type(out) is _ndarray else _asarray(out))
        return general(tensor)

    return unary


def _binary(engine: Any, kernel: Handler, general: Handler) -> Handler:
    """A fast path for two tensors of one dtype, float32 or float64, or one and a float."""
    call = engine.quick

    def binary(tensor: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return general(tensor, other, *args, **kwargs)
        try:
            array = as_array(tensor)
        except AttributeError:  # a scalar before the tensor
            return general(tensor, other)
        kind = array.dtype
        if (kind is not _FLOAT32 and kind is not _FLOAT64) or type(array) is not _ndarray:
            return general(tensor, other)
        second = other
        if type(other) is not float:
            second = as_array(other) if isinstance(other, _Tensor) else None
            if type(second) is not _ndarray or second.dtype is not kind:
                return general(tensor, other)
        try:
            out = call(kernel, array, second)
        except (ValueError, MemoryError):  # the general path raises a better error, or frees memory
            return general(tensor, other)
        if out.dtype is kind:
            return as_tensor(out if type(out) is _ndarray else _asarray(out))
        return general(tensor, other)

    return binary


def _computer(overload: Any, op: Op) -> Callable[[Any, Any], Any]:
    """A function from torch's arguments to the arrays of an op's result."""
    engine = ENGINES["numpy"]
    lower = _lower_any if op.schema.base in _INDICES_FROM_CPU else _lower
    listed = overload._schema.arguments
    positions = [n for n, a in enumerate(listed) if a.name in resolve.DROPPED and not a.kwarg_only]
    dropped = resolve.DROPPED | {a.name for a in listed if a.is_out}
    seeded = any(a.name == "generator" for a in listed)

    def compute(args: Any, kwargs: Any) -> Any:
        if positions:
            args = [a for position, a in enumerate(args) if position not in positions]
        try:
            raw = [lower[type(a)](a) for a in args]
            named = kwargs and {k: lower[type(v)](v) for k, v in kwargs.items() if k not in dropped}
            if choice.elsewhere:  # there may be arrays that are not NumPy's
                otherwise = functools.partial(engine_dispatch.engine_for, kwargs.get("device"))
                return engine_dispatch.compute_op(op, raw, named, otherwise)
            return run(op, engine, raw, named)
        except HoldfastError as exc:
            raise to_torch_error(exc) from exc.__cause__

    if not seeded:
        return compute

    def with_generator(args: Any, kwargs: Any) -> Any:
        if kwargs.get("generator") is None:
            return compute(args, kwargs)
        out = fallback.compute_by_torch(overload, args, kwargs)
        return [as_array(o) for o in out] if isinstance(out, list | tuple) else as_array(out)

    return with_generator


def _in_place(overload: Any, op: Op) -> Handler:
    compute = _computer(overload, op)
    placed = [a for a in overload._schema.arguments if not a.kwarg_only]
    positional = [a.name for a in placed]
    rest = [a for a in placed if a.name not in resolve.DROPPED and a.has_default_value()]
    promotes = op.rule.kind is not None or op.name in _PROMOTING

    def in_place(*args: Any, **kwargs: Any) -> Any:
        target = args[0]
        if rest:  # defaults that only the in-place form has (`bernoulli_`'s p)
            given = set(positional[: len(args)])
            args = (*args, *(a.default_value for a in rest if a.name not in given))
        out = compute(args, kwargs)
        if type(out) is tuple:
            out = out[0]
        _write(op, target, out, promotes)
        return target

    engine = ENGINES["numpy"]
    ufunc = _FOR_FLOATS.get(op.name) or engine.kernels.get(op.name)
    # These take their target only by name.
    by_name = ufunc is numpy.maximum or ufunc is numpy.minimum
    if isinstance(ufunc, numpy.ufunc) and ufunc.nout == 1 and promotes and not by_name:
        return _into_itself(engine, ufunc, in_place)
    return in_place


def _into_itself(engine: Any, ufunc: numpy.ufunc, general: Handler) -> Handler:
    """A fast path for a ufunc that writes where it reads, all float32 or all float64."""
    call, others = engine.quick, ufunc.nin - 1

    def in_place(target: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != others:
            return general(target, *args, **kwargs)
        array = as_array(target)
        kind = array.dtype
        if (kind is not _FLOAT32 and kind is not _FLOAT64) or 0 in array.strides:
            return general(target, *args)
        given = [array, *(as_array(a) if isinstance(a, _Tensor) else a for a in args)]
        for one in given:
            if type(one) is not float and (type(one) is not _ndarray or one.dtype is not kind):
                return general(target, *args)
        try:
            call(ufunc, *given, array)
        except (ValueError, TypeError):  # the general path raises a better error
            return general(target, *args)
        return target

    return in_place


def _write(op: Op, target: torch.Tensor, out: Any, promotes: bool) -> None:
    array = as_array(target)
    try:
        if promotes and dtypes.category(out.dtype) > dtypes.category(array.dtype):
            raise Refused(
                f"cannot compute {op.name} into a tensor: result type {_name_of(out.dtype)} "
                f"can't be cast to the desired output type {_name_of(array.dtype)}",
                expected="a tensor whose dtype holds the result",
            )
        if out.shape != array.shape and out.ndim > array.ndim:
            raise Refused(
                f"cannot compute {op.name} in place: the result has shape {list(out.shape)}, the "
                f"tensor has {list(array.shape)}",
                expected="a tensor of the result's shape",
            )
        if op.schema.base not in _FILLING:
            tensor_bridge.check_writable(array)
        engine_dispatch.write(array, out)
    except HoldfastError as exc:
        raise to_torch_error(exc) from exc.__cause__
    except ValueError as exc:
        what = f"cannot compute {op.name} in place: {exc}"
        raise Refused(what, expected="a tensor of the result's shape") from exc


def _name_of(kind: Any) -> str:
    return str(tensor_bridge.TO_TORCH[kind]).removeprefix("torch.")


def _out(overload: Any, op: Op) -> Handler:
    compute = _computer(overload, op)
    names = [a.name for a in overload._schema.arguments if a.is_out]
    promotes = op.rule.kind is not None
    asked = outs.demand(overload, op)

    def out(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs[name] for name in names]
        found = compute(args, kwargs)
        results = found if isinstance(found, list | tuple) else (found,)
        if len(names) == 1 and isinstance(targets[0], list | tuple):
            targets = list(targets[0])
        for target, result in zip(targets, results, strict=True):
            outs.check_dtype(op, asked, args, target, result.dtype)
            if promotes:
                outs.check_shape(op, target, args, tuple(result.shape))
        for target, result in zip(targets, results, strict=True):
            fit(target, tuple(result.shape))
            _write(op, target, result, False)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return out


def fit(target: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Give the target of an out= form the shape of its result, and warn as torch does."""
    if tuple(target.shape) == shape:
        return
    if target.numel():
        warnings.warn(
            f"An output with one or more elements was resized since it had shape "
            f"{list(target.shape)}, which does not match the required output shape {list(shape)}.",
            UserWarning,
            stacklevel=3,
        )
    tensor_bridge.resize(target, shape)
