"""Operators of torch as functions over JAX arrays, by name.

    overrides({"aten.rms_norm": my_rms_norm, "torch.nn.functional.gelu": my_gelu})

makes the overrides of one port for a `ModuleCall`. `builtin()` are ours, for all environments;
`decompose()` is tried for an operator without an implementation.

Of the operators that the specification lists, torchax 0.0.13 has these (measured against torch; the
middle column is `torch.inference_mode`, under which ComfyUI runs nodes):

    operator                        outside   inside     here
    unflatten.int, chunk            right     missing    decomposed
    cartesian_prod, dropout         right     missing    decomposed
    layer_norm, group_norm          right     missing    decomposed into the native ones
    native_layer_norm, -group_norm  bf16 off  bf16 off   float32 inside; 8e-3 becomes 0
    rms_norm                        right     missing    float32 inside
    native_dropout                  right     right      left alone
    conv2d                          right     no default arguments, no "same": decomposed
    scaled_dot_product_attention    bf16 off  bf16 off   attention, set by Environment

Beyond its list, inside inference mode: min and max of two tensors were read as those along an axis,
and `to` forgot the device, so that `cpu()` gave torchax's tensor back.
Nothing here changes torch or another environment. Norms are computed in float32 at least and
rounded once.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from holdfast.base.errors import BadInput, NotFound
from holdfast.xla.compat.importing import torchax

torchax()

from torchax.ops.ops_registry import Operator  # noqa: E402  (imports only with the mends)

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True)
class Override:
    """A function that replaces an operator.

    `in_jax`: it takes and returns JAX arrays, else torchax's tensors. `is_view`: it receives views
    unchanged, so that its result can be written through; only with tensors.
    """

    function: Callable[..., Any]
    in_jax: bool = True
    is_view: bool = False


def overrides(by_name: Mapping[str, Callable[..., Any] | Override]) -> Mapping[Any, Operator]:
    """Make the table of overrides that `ModuleCall` and `Environment` take.

    A plain function is one over JAX arrays, with the operator's own arguments. Raises NotFound for
    an operator that torch does not have, BadInput for a value that is not callable.
    """
    return {operator(name): _entry(name, given) for name, given in by_name.items()}


def _entry(name: str, given: Any) -> Operator:
    one = given if isinstance(given, Override) else Override(given)
    if not callable(one.function):
        raise BadInput(
            f"cannot override {name}: {given!r} is no function",
            expected=f"a function, as in {line_for(name)}",
        )
    return _operator(operator(name), one, is_users=True)


def _operator(key: Any, one: Override, is_users: bool = False) -> Operator:
    return Operator(
        key,
        one.function,
        is_jax_function=one.in_jax,
        is_user_defined=is_users,
        needs_env=False,
        is_view_op=one.is_view,
    )


def operator(name: str) -> Any:
    """Find an operator by name: "aten.rms_norm", "aten::unflatten.int", "torch.cat".

    A name without an overload stands for all of its overloads. Raises NotFound.
    """
    parts = name.replace("::", ".").split(".")
    found: Any = torch if parts[0] == "torch" else torch.ops
    for part in parts[1:] if parts[0] == "torch" else parts:
        found = getattr(found, part, None)
    if len(parts) < 2 or not callable(found):
        raise NotFound(
            f"torch has no operator {name!r}",
            expected='a name such as "aten.rms_norm", "aten.unflatten.int", '
            '"torch.nn.functional.gelu"',
        )
    return found


def line_for(name: str) -> str:
    """The line of a port that adds a missing operator, with the operator's arguments."""
    plain = name.replace("::", ".")
    return f'Port(..., ops={{"{plain}": lambda {arguments_of(plain)}: ...}})'


def arguments_of(name: str) -> str:
    """The arguments of an operator as text, with torch's names and defaults."""
    try:
        found = operator(name)
    except NotFound:
        return "*args, **kwargs"
    if isinstance(found, torch._ops.OpOverloadPacket):
        found = getattr(found, found.overloads()[0])
    if not isinstance(found, torch._ops.OpOverload):
        return "*args, **kwargs"
    texts, by_name_only = [], False
    for one in found._schema.arguments:
        if one.kwarg_only and not by_name_only:
            texts.append("*")
            by_name_only = True
        has_default = one.has_default_value()
        texts.append(f"{one.name}={one.default_value!r}" if has_default else one.name)
    return ", ".join(texts)


def describe_overrides(entries: Mapping[Any, Operator]) -> list[str]:
    """Overrides as text for a program's cache key; another function gives another text."""
    return sorted(f"{key} {code_of(one.func)}" for key, one in entries.items())


def code_of(function: Any) -> str:
    """A function as text: its code, its defaults, what it closes over or is a partial of.

    Functions that it calls are not included; objects count by class, functions by name.
    """
    if isinstance(function, functools.partial):
        given = _values_of((*function.args, *sorted(function.keywords.items())))
        return f"{code_of(function.func)} {given}"
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner))}"
    cells = map(_content, inner.__closure__ or ())
    by_name = sorted((inner.__kwdefaults__ or {}).items())
    values = _values_of((*(inner.__defaults__ or ()), *by_name, *cells))
    return f"{hashlib.sha256(marshal.dumps(code)).hexdigest()} {values}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _values_of(values: Any) -> str:
    """Values as text that is the same in another process."""
    if isinstance(values, str | bytes | int | float | complex | None):
        return repr(values)
    if isinstance(values, tuple | list):
        return f"[{', '.join(map(_values_of, values))}]"
    kind = type(values)
    return getattr(values, "__qualname__", f"{kind.__module__}.{kind.__qualname__}")


@functools.cache
def decompose(func: Any) -> Operator | None:
    """Torch's own decomposition of an operator; None if it has none.

    Outside of inference mode torch decomposes before it dispatches.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return None
    if not func.has_kernel_for_dispatch_key(_COMPOSITE):
        return None
    return _operator(func, Override(func.decompose, in_jax=False, is_view=True))


@functools.cache
def builtin() -> Mapping[Any, Operator]:
    """Replacements for operators that torchax gets wrong; a port's overrides come after them."""
    aten: Any = torch.ops.aten
    found = {
        getattr(aten, name): _operator(getattr(aten, name), Override(function))
        for name, function in _IN_JAX.items()
    }
    wrong = (aten.conv2d.default, aten.conv2d.padding, aten.min.other, aten.max.other)
    for func in (*wrong, aten.to.device, aten.to.dtype, aten.to.dtype_layout):
        through = decompose(func)
        if through is not None:
            found[func] = through
    return found


def native_layer_norm(
    input: jax.Array,
    normalized_shape: Any,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The result, the mean and 1 / standard deviation."""
    wide, mean, rstd = _moments(input, _last_axes(input, normalized_shape), eps)
    out = _scale((wide - mean) * rstd, weight, bias)
    kept = _statistics_dtype(input, weight)
    return out.astype(input.dtype), mean.astype(kept), rstd.astype(kept)


def native_group_norm(
    input: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The result, the mean and 1 / standard deviation of each group."""
    wide, mean, rstd = _moments(input.reshape(N, group, C // group * HxW), (2,), eps)
    by_channel = (C, *(1 for _ in input.shape[2:]))
    out = _scale(
        ((wide - mean) * rstd).reshape(input.shape),
        None if weight is None else weight.reshape(by_channel),
        None if bias is None else bias.reshape(by_channel),
    )
    kept = _statistics_dtype(input, weight)
    return out.astype(input.dtype), mean[..., 0].astype(kept), rstd[..., 0].astype(kept)


def rms_norm(
    input: jax.Array,
    normalized_shape: Any,
    weight: jax.Array | None = None,
    eps: float | None = None,
) -> jax.Array:
    """RMS norm, computed in float32 at least."""
    return fused_rms_norm(input, normalized_shape, weight, eps)[0]


def fused_rms_norm(
    input: jax.Array,
    normalized_shape: Any,
    weight: jax.Array | None = None,
    eps: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The result and 1 / root of the mean square, in float32. Without eps: float32's own."""
    wide = input.astype(_wide(input))
    eps = float(jnp.finfo(wide.dtype).eps) if eps is None else eps
    mean_square = jnp.mean(wide * wide, axis=_last_axes(input, normalized_shape), keepdims=True)
    rstd = jax.lax.rsqrt(mean_square + eps)
    return _scale(wide * rstd, weight, None).astype(input.dtype), rstd


_IN_JAX: Mapping[str, Callable[..., Any]] = {
    "native_layer_norm": native_layer_norm,
    "native_group_norm": native_group_norm,
    "rms_norm": rms_norm,
    "_fused_rms_norm": fused_rms_norm,
}


def _moments(
    array: jax.Array, axes: tuple[int, ...], eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    wide = array.astype(_wide(array))
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axis=axes, keepdims=True)
    return wide, mean, jax.lax.rsqrt(variance + eps)


def _scale(wide: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    if weight is not None:
        wide = wide * weight.astype(wide.dtype)
    return wide if bias is None else wide + bias.astype(wide.dtype)


def _last_axes(array: jax.Array, normalized_shape: Any) -> tuple[int, ...]:
    return tuple(range(array.ndim - len(normalized_shape), array.ndim))


def _wide(array: jax.Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


def _statistics_dtype(array: jax.Array, weight: jax.Array | None) -> Any:
    """As on torch's CPU: the dtype of the input, or of a wider weight."""
    return array.dtype if weight is None else jnp.promote_types(array.dtype, weight.dtype)
