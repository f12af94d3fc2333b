"""`torch.autocast("holdfast")`: which overloads compute in a narrower dtype, which in float32.

torch keeps the blocks and their nesting. The default dtype is bfloat16, in every thread; float64
stays. A weight is cast once within the outermost block, and its copy is freed after it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from holdfast.compute.torch_device.storage.tensor_bridge import DEVICE

_C: Any = torch._C  # what its stubs do not mention
_KEY = "AutocastPrivateUse1"
Tensor = torch.Tensor

# Matrix products and convolutions: fast in a narrow dtype, and exact enough.
NARROW = (
    *("_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution"),
    *("prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear"),
    *("addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell"),
    *("_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    "scaled_dot_product_attention",
)
# What overflows, or sums many small elements: norms, losses, powers.
WIDE = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    *("softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("multi_margin_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d"),
    *("_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d"),
    *("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d"),
    *("upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
# The same, where the overload has a dtype argument.
WIDE_BY_DTYPE = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
    *("sum", "sum.dim_IntList"),
)
# The same, where another overload has one.
WIDE_BY_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
# Several tensors that need one dtype: the widest among them.
WIDEST = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
    *("index_put", "tensordot", "scatter_add"),
)


def register(aten: Any, rest: Any) -> None:
    """Have torch cast before it computes. `aten` and `rest` are libraries for "aten" and "_"."""
    rest.fallback(torch.library.fallthrough_kernel, _KEY)
    for names, to in ((NARROW, _narrow), (WIDE, _wide), (WIDEST, _widest)):
        for name in names:
            aten.impl(name, _make_caster(_overload(name), to), _KEY)
    for name, other in ({n: n for n in WIDE_BY_DTYPE} | WIDE_BY_OVERLOAD).items():
        aten.impl(name, _wide_by_dtype(_overload(name), _overload(other)), _KEY)


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


# ---- kernels


def _without_casts() -> Any:
    return _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.AutocastPrivateUse1))


def _make_caster(overload: Any, to: Callable[[Any, Any], torch.dtype]) -> Callable[..., Any]:
    def cast_and_call(*args: Any, **kwargs: Any) -> Any:
        with _without_casts():
            kind = to(args, kwargs)
            return overload(
                *(_cast(a, kind) for a in args), **{k: _cast(v, kind) for k, v in kwargs.items()}
            )

    return cast_and_call


def _narrow(args: Any, kwargs: Any) -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE)


def _wide(args: Any, kwargs: Any) -> torch.dtype:
    return torch.float32


def _widest(args: Any, kwargs: Any) -> torch.dtype:
    kinds = {t.dtype for t in _tensors((args, list(kwargs.values()))) if _eligible(t)}
    return kinds.pop() if len(kinds) == 1 else torch.float32


def _wide_by_dtype(overload: Any, other: Any) -> Callable[..., Any]:
    names = [a.name for a in overload._schema.arguments]
    place = names.index("dtype") if "dtype" in names else len(names)

    def call(*args: Any, **kwargs: Any) -> Any:
        asked = args[place] if len(args) > place else kwargs.get("dtype")
        with _without_casts():
            if not _eligible(args[0]) or asked is not None:
                return overload(*args, **kwargs)
            return other(*args[:place], **{**kwargs, "dtype": torch.float32})

    return call


# ---- casting


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == DEVICE
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, list | tuple):
        return [found for one in value for found in _tensors(one)]
    return [value] if isinstance(value, Tensor) else []


def _cast(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_cast(one, kind) for one in value)
    if not _eligible(value) or value.dtype is kind:
        return value
    narrows = kind is not torch.float32 and value.dtype is torch.float32
    weight = narrows and value.requires_grad and value.is_leaf and not value._is_view()
    if weight and torch.is_autocast_cache_enabled():
        return _cast_once(value, kind)
    return value.to(kind)


_weights: dict[tuple[int, torch.dtype, bool], tuple[weakref.ref[Tensor], Tensor]] = {}


def _cast_once(weight: Tensor, kind: torch.dtype) -> Tensor:
    """Cast a weight; a copy made within the outermost block is used again."""
    # Without gradients the cast is not part of a graph: it needs its own entry.
    key = (id(weight), kind, torch.is_grad_enabled())
    known = _weights.get(key)
    if known is not None and known[0]() is weight:
        return known[1]
    made = weight.to(kind)
    _weights[key] = (weakref.ref(weight), made)
    return made


# ---- state of a thread


class _Thread(threading.local):
    ready = False


_thread = _Thread()


def install() -> None:
    """Have torch clear our cache with its own, and default to bfloat16 in every thread."""
    theirs: Any = torch
    clear, chosen = theirs.clear_autocast_cache, theirs.get_autocast_dtype

    @functools.wraps(clear)
    def clear_autocast_cache() -> None:
        _weights.clear()
        clear()

    @functools.wraps(chosen)
    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if not _thread.ready and device_type == DEVICE:
            _thread.ready = True
            torch.set_autocast_dtype(DEVICE, torch.bfloat16)
        return chosen(device_type)

    theirs.clear_autocast_cache = clear_autocast_cache
    theirs.get_autocast_dtype = get_autocast_dtype
