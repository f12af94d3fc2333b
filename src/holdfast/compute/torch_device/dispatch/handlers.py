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

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, run
from holdfast.compute.ops.table import Op
from holdfast.compute.torch_device.api.engine_choice import choice
from holdfast.compute.torch_device.dispatch import (
    engine_dispatch,
    fallback,
    resolve,
)
from holdfast.compute.torch_device.dispatch import (
    out_args as outs,
)
from holdfast.compute.torch_device.error_translation import to_torch_error
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
    """Converts arguments for kernels, by type."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        how: Callable[[Any], Any]
        if issubclass(kind, torch.Tensor):
            how = self.tensor
        elif issubclass(kind, list | tuple):
            how = self.several
        elif kind is torch.dtype:
            how = tensor_bridge.TO_NUMPY.__getitem__
        else:
            how = _same
        self[kind] = how
        return how

    def tensor(self, value: torch.Tensor) -> Any:
        return as_array(value)

    def several(self, values: Any) -> Any:
        return [self[type(v)](v) for v in values]


def _same(value: Any) -> Any:
    return value


class _LoweringAny(_Lowering):
    def tensor(self, value: torch.Tensor) -> Any:
        return tensor_bridge.as_array_any(value)


_lower = _Lowering()
_lower[torch.Tensor] = _lower[torch.nn.Parameter] = as_array
_lower_any = _LoweringAny()


def handler(overload: Any) -> Handler:
    """A function that computes an overload on the device."""
    op, form = resolve.counterpart(overload)
    if op is None:
        return fallback.handler(overload)
    if form == resolve.FUNCTIONAL:
        return _functional(overload, op)
    return (_in_place if form == resolve.IN_PLACE else _out)(overload, op)


def _raised(out: Any) -> Any:
    if type(out) is _ndarray:
        return as_tensor(out)
    if isinstance(out, list | tuple):
        return type(out)(_raised(one) for one in out)
    if remote_storage.is_remote(out):
        return remote_storage.as_tensor(out)
    return as_tensor(numpy.asarray(out)) if isinstance(out, numpy.generic) else out


def _functional(overload: Any, op: Op) -> Handler:
    compute = _computer(overload, op)

    def general(*args: Any, **kwargs: Any) -> Any:
        out = compute(args, kwargs)
        return as_tensor(out) if type(out) is _ndarray else _raised(out)

    engine = ENGINES["numpy"]
    kernel = engine.kernels.get(op.name)
    if kernel is None or op.rule.kind is None or op.rule.kind == "bool":
        return general
    needed = [a for a in overload._schema.arguments if not a.has_default_value()]
    if not needed or str(needed[0].type) != "Tensor" or len(needed) > 2:
        return general
    if any(a.kwarg_only for a in needed):
        return general
    return (_unary if len(needed) == 1 else _binary)(engine, _plain(op, kernel), general)


def _plain(op: Op, kernel: Handler) -> Handler:
    """The kernel, or the ufunc that it is for floats without options."""
    return _FOR_FLOATS.get(op.name, kernel)


_FOR_FLOATS: dict[str, Handler] = {
    "add.Tensor": numpy.add,
    "add.Scalar": numpy.add,
    "sub.Tensor": numpy.subtract,
    "sub.Scalar": numpy.subtract,
}


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
        if type(other) is float:
            second = other
        elif isinstance(other, _Tensor):
            second = as_array(other)
            if second.dtype is not kind or type(second) is not _ndarray:
                return general(tensor, other)
        else:
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
    positions = [
        position
        for position, a in enumerate(overload._schema.arguments)
        if a.name in resolve.DROPPED and not a.kwarg_only
    ]
    outs = {a.name for a in overload._schema.arguments if a.is_out}
    dropped = resolve.DROPPED | outs
    seeded = any(a.name == "generator" for a in overload._schema.arguments)

    def compute(args: Any, kwargs: Any) -> Any:
        if positions:
            args = [a for position, a in enumerate(args) if position not in positions]
        try:
            raw = [lower[type(a)](a) for a in args]
            named = kwargs and {k: lower[type(v)](v) for k, v in kwargs.items() if k not in dropped}
            if choice.elsewhere:  # there may be arrays that are not NumPy's
                otherwise = functools.partial(engine_dispatch.engine_for, kwargs.get("device"))
                return engine_dispatch.computed(op, raw, named, otherwise)
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
    rest = [
        a
        for a in overload._schema.arguments
        if a.name not in resolve.DROPPED and not a.kwarg_only and a.has_default_value()
    ]
    positional = [a.name for a in overload._schema.arguments if not a.kwarg_only]
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
    ufunc = _plain(op, engine.kernels.get(op.name, _same))
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
        if (array.dtype is not _FLOAT32 and array.dtype is not _FLOAT64) or 0 in array.strides:
            return general(target, *args)
        if type(array) is not _ndarray:
            return general(target, *args)
        given: list[Any] = [array]
        for other in args:
            if isinstance(other, _Tensor):
                second = as_array(other)
                if second.dtype is not array.dtype or type(second) is not _ndarray:
                    return general(target, *args)
                given.append(second)
            elif type(other) is float:
                given.append(other)
            else:
                return general(target, *args)
        try:
            call(ufunc, *given, array)
        except (
            ValueError,
            TypeError,
        ):  # the general path raises a better error
            return general(target, *args)
        return target

    return in_place


def _write(op: Op, target: torch.Tensor, out: Any, promotes: bool) -> None:
    """Copy a result into a tensor on the device."""
    array = as_array(target)
    try:
        if promotes and dtypes.category(out.dtype) > dtypes.category(array.dtype):
            raise BadInput(
                f"cannot compute {op.name} into a tensor: result type {_named(out.dtype)} can't be "
                f"cast to the desired output type {_named(array.dtype)}",
                expected="a tensor whose format holds the result",
            )
        if out.shape != array.shape and out.ndim > array.ndim:
            raise BadInput(
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
        wrong = BadInput(
            f"cannot compute {op.name} in place: {exc}", expected="a tensor of the result's shape"
        )
        raise to_torch_error(wrong) from exc


def _named(kind: Any) -> str:
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
