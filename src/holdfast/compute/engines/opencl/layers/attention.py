"""Scaled dot product attention and its gradient.

The whole matrix of weights is never stored: the fused kernels keep none of it, the gradient a part
that fits into a bounded workspace. Narrow floats are computed in float32 and rounded once. Dropout
is not supported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.opencl.elementwise.strided_kernels import Input, compute
from holdfast.compute.engines.opencl.matrix.gemm import FAST, cast_once, gemm, transpose_matrices
from holdfast.compute.engines.opencl.runtime import tuned_parameters
from holdfast.compute.engines.opencl.runtime.array import Array
from holdfast.compute.engines.opencl.runtime.engine_protocol import CLEngine
from holdfast.compute.engines.opencl.runtime.kernel_table import (
    check_double,
    kernel,
    storage,
    working,
)
from holdfast.compute.ops.layers.attention import plan_attention

WORKSPACE_BYTES = {"cpu": 8 << 20, "gpu": 256 << 20}  # for weights, in the gradient
_CPU, _GPU = "panels_cpu attention_cpu", "fours_gpu attention_gpu"  # kernel files
_WIDEST = 256  # largest head dimension of the fused kernels


class _Case(NamedTuple):
    """One call: q [B, H, L, E], k [B, H / share, S, E], v [B, H / share, S, D]."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    factor: float
    causal: bool
    share: int  # query heads for each key head


@kernel("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    engine: CLEngine, query: Array, key: Array, value: Array, dropout_p: float = 0.0,
    is_causal: bool = False, attn_mask: Array | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    case = _check_arguments(engine, query, key, value, dropout_p, is_causal, attn_mask, scale)
    out = _heads_inside(engine, (*query.shape[:3], value.shape[3]), query.dtype)
    sums = engine.alloc(query.shape[:3], dtypes.working(query.dtype))
    if not sums.size:
        return out, sums
    _choose(engine, case)(engine, case, out, sums)
    return out, sums


@kernel("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    engine: CLEngine, grad_out: Array, query: Array, key: Array, value: Array, out: Array,
    logsumexp: Array, dropout_p: float, is_causal: bool, attn_mask: Array | None = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    case = _check_arguments(engine, query, key, value, dropout_p, is_causal, attn_mask, scale)
    kind = dtypes.working(query.dtype)
    grads = [_heads_inside(engine, a.shape, kind) for a in (query, key, value)]
    for array in grads:
        if array.size:
            engine.write(array, numpy.zeros((), kind))
    if query.size and key.size:
        _backward(engine, _cast(engine, case, kind), engine.cast(grad_out, kind), grads)
    return tuple(engine.cast(a, query.dtype) for a in grads)


def _heads_inside(engine: CLEngine, shape: tuple[int, ...], kind: numpy.dtype[Any]) -> Array:
    """An array [B, H, L, E] in the memory order B, L, H, E: heads are joined without a copy."""
    many, heads, length, width = shape
    return engine.alloc((many, length, heads, width), kind).transpose((0, 2, 1, 3))


def _check_arguments(
    engine: CLEngine, query: Array, key: Array, value: Array, dropout: float, causal: bool,
    mask: Array | None, scale: float | None,
) -> _Case:  # fmt: skip
    factor, share = plan_attention(query, key, value, dropout, scale)
    working(query.dtype)  # raises NotHere for complex dtypes
    check_double(engine, query.dtype)
    if mask is not None:
        mask = _mask(engine, mask, query.dtype)
        mask = mask.broadcast_to((*query.shape[:3], key.shape[2]))
    return _Case(query, key, value, mask, factor, bool(causal), share)


def _mask(engine: CLEngine, mask: Array, kind: numpy.dtype[Any]) -> Array:
    """The mask as values that are added to the scores."""
    if mask.dtype != dtypes.BOOL:
        return engine.cast(mask, kind)
    made = engine.alloc_like(mask, kind)
    return compute(engine, "($mask ? 0.0f : -INFINITY)", [Input("mask", mask, "uchar")], [], made)


# ---- forward


def _choose(engine: CLEngine, case: _Case) -> Any:
    width, kind = case.q.shape[3], case.q.dtype
    if not case.k.size or not case.v.size or max(width, case.v.shape[3]) > _WIDEST:
        return _in_steps
    if engine.mapping == "cpu":
        return _on_cpu
    fits = case.v.shape[3] == width and storage(kind) in FAST and kind != dtypes.FLOAT64
    return _on_gpu if fits and tuned_parameters.attention_tile(engine, width) else _in_steps


def _on_cpu(engine: CLEngine, case: _Case, out: Array, sums: Array) -> None:
    kind = dtypes.working(case.q.dtype)
    if kind != case.q.dtype:
        case = _cast(engine, case, kind)
        wide = _heads_inside(engine, out.shape, kind)
        _on_cpu(engine, case, wide, sums)
        engine.write(out, wide)
        return
    q, k, v, mask = case.q, case.k, case.v, case.mask
    (many, heads, length, depth), (_, near, keys, width) = q.shape, v.shape
    tile = tuned_parameters.cpu_tile(engine, kind)
    panel = tile["NV"] * tile["VEC"]
    panels, padded = -(-keys // panel), -(-width // panel) * panel
    defines = {"WORD": storage(kind), **tile, "DEPTH": depth, "WIDTH": padded, "HAS_LSE": 1}
    defines |= {"CAUSAL": 1} if case.causal else {}
    defines |= {"HAS_MASK": 1} if mask is not None else {}
    to_k = engine.alloc((many * near, panels * panel * depth), kind)
    to_v = engine.alloc((many * near, panels * panel * padded), kind)
    engine.launch(
        engine.kernel(_CPU, "attention_pack", **defines),
        (panels, many * near), (1, 1), k, v, to_k, to_v, near, keys, width, *k.steps, *v.steps,
    )  # fmt: skip
    arrays = (q, to_k, to_v, out, *(() if mask is None else (mask,)), sums)
    engine.launch(
        engine.kernel(_CPU, "attention", **defines),
        (-(-length // tile["MR"]), many * heads), (1, 1), *arrays, heads, case.share, length, keys,
        width, *q.steps, *out.steps[:3], kind.type(case.factor), *((0,) if case.causal else ()),
        *(() if mask is None else mask.steps),
    )  # fmt: skip
    _fix_empty_rows(engine, case, sums)


def _on_gpu(engine: CLEngine, case: _Case, out: Array, sums: Array) -> None:
    q, k, v = (a if a.steps[3] == 1 else engine.contiguous(a) for a in case[:3])
    (many, heads, length, width), keys, mask = q.shape, k.shape[2], case.mask
    tile = tuned_parameters.attention_tile(engine, width)
    fours = all(_is_vectorizable(a) for a in (q, k, v))
    defines = {
        "D": width, **tile, "WORD": storage(q.dtype), "CAUSAL": int(case.causal),
        "MASK": int(mask is not None), "HAS_LSE": 1, "VQ": 4 if fours else 1,
        "VO": 4 if _is_vectorizable(out) else 1,
    }  # fmt: skip
    items = tile["TX"] * tile["BQ"] // tile["RQ"]
    groups = -(-length // tile["BQ"]) * many * heads
    steps = (0, 0, 0, 0) if mask is None else mask.steps
    engine.launch(
        engine.kernel(_GPU, "attention_gpu", **defines), (items * groups,), (items,),
        q, k, v, q if mask is None else mask, out, sums, heads, case.share, length, keys,
        *q.steps[:3], *k.steps[:3], *v.steps[:3], *steps, *out.steps[:3], 0,
        numpy.float32(case.factor),
    )  # fmt: skip
    _fix_empty_rows(engine, case, sums)


def _is_vectorizable(array: Array) -> bool:
    whole = (step % 4 == 0 for step, n in zip(array.steps[:3], array.shape, strict=False) if n > 1)
    return array.shape[3] % 4 == 0 == array.offset % (4 * array.itemsize) and all(whole)


def _fix_empty_rows(engine: CLEngine, case: _Case, sums: Array) -> None:
    """Rows that see nothing have a log-sum-exp of 0 in this op; the kernels write -inf."""
    if case.mask is not None:
        text = "($self == -INFINITY ? 0 : $self)"
        compute(engine, text, [Input("self", sums, working(sums.dtype))], [], sums)


def _cast(engine: CLEngine, case: _Case, kind: numpy.dtype[Any]) -> _Case:
    """A cast of the arrays; a broadcast mask stays broadcast."""
    mask = None if case.mask is None else cast_once(engine, case.mask, kind)
    q, k, v = (engine.cast(a, kind) for a in case[:3])
    return case._replace(q=q, k=k, v=v, mask=mask)


# ---- step by step, with some rows of weights in memory


def _in_steps(engine: CLEngine, case: _Case, out: Array, sums: Array) -> None:
    kind = dtypes.working(case.q.dtype)
    case = _cast(engine, case, kind)
    target = out if out.dtype == kind else _heads_inside(engine, out.shape, kind)
    for start, stop, seen in _split_queries(engine, case):
        for part in range(case.share):
            weights = _compute_weights(engine, case, start, stop, seen, part, sums)
            into = _select_rows(_select_heads(target, part, case.share), start, stop)
            gemm(engine, weights, _select_rows(case.v, 0, seen), into)
    if target is not out:
        engine.write(out, target)


def _backward(engine: CLEngine, case: _Case, grad: Array, grads: list[Array]) -> None:
    dq, dk, dv = grads
    share, kind = case.share, case.q.dtype
    sums = engine.alloc(case.q.shape[:3], kind)
    slopes = engine.kernel("attention_steps", "attention_slopes", **_defines(case))
    for start, stop, seen in _split_queries(engine, case):
        keys, values, to_k, to_v = (_select_rows(a, 0, seen) for a in (case.k, case.v, dk, dv))
        for part in range(share):
            weights = _compute_weights(engine, case, start, stop, seen, part, sums)
            q, g, to_q = (
                _select_rows(_select_heads(a, part, share), start, stop) for a in (case.q, grad, dq)
            )
            gemm(engine, transpose_matrices(weights), g, to_v, to_v)
            toward = engine.alloc(weights.shape, kind)
            gemm(engine, g, transpose_matrices(values), toward)
            many, near, rows, _ = weights.shape
            _launch(engine, slopes, rows, many * near, weights, toward, rows, seen,
                    kind.type(case.factor))  # fmt: skip
            gemm(engine, toward, keys, to_q)
            gemm(engine, transpose_matrices(toward), q, to_k, to_k)


def _defines(case: _Case) -> dict[str, Any]:
    words: dict[str, Any] = {"ACC": working(case.q.dtype)}
    if case.mask is not None:
        words |= {"HAS_MASK": 1, "MASK": storage(case.mask.dtype)}
    return words


def _launch(engine: CLEngine, made: Any, rows: int, heads: int, *args: Any) -> None:
    if engine.mapping == "gpu":  # 1-d: some drivers limit the other dimensions
        engine.launch(made, (64 * rows * heads,), (64,), *args)
    else:
        engine.launch(made, (rows, heads), (1, 1), *args)


def _split_queries(engine: CLEngine, case: _Case) -> list[tuple[int, int, int]]:
    """Blocks of queries (first, end) whose weights fit, and how many keys they see."""
    many, near, keys, _ = case.k.shape
    length = case.q.shape[2]
    row = max(1, many * near * keys * case.q.itemsize * 2)
    step = max(1, min(length, WORKSPACE_BYTES[engine.mapping] // row))
    stops = [(start, min(start + step, length)) for start in range(0, length, step)]
    return [(a, b, min(b, keys) if case.causal else keys) for a, b in stops]


def _compute_weights(
    engine: CLEngine, case: _Case, start: int, stop: int, seen: int, part: int, sums: Array
) -> Array:
    """The weights of some queries of every `share`th head, from `part` on."""
    share, (many, _, length, _) = case.share, case.q.shape
    near, rows = case.k.shape[1], stop - start
    weights = engine.alloc((many, near, rows, seen), case.q.dtype)
    q = _select_rows(_select_heads(case.q, part, share), start, stop)
    gemm(engine, q, transpose_matrices(_select_rows(case.k, 0, seen)), weights, alpha=case.factor)
    mask = case.mask
    steps = (0, 0, 0, 0)
    if mask is not None:
        mask = _select_heads(mask, part, share)
        steps = mask.steps
    made = engine.kernel("attention_steps", "attention_weights", **_defines(case))
    to = sums.view(sums.dtype, sums.shape, None, sums.offset + part * sums.strides[1])
    _launch(
        engine, made, rows, many * near, weights, weights if mask is None else mask, to, rows, seen,
        start, near, int(case.causal), *steps, share * length,
    )  # fmt: skip
    return weights


def _select_heads(array: Array, part: int, share: int) -> Array:
    shape = (array.shape[0], array.shape[1] // share, *array.shape[2:])
    strides = (array.strides[0], array.strides[1] * share, *array.strides[2:])
    return array.view(array.dtype, shape, strides, array.offset + part * array.strides[1])


def _select_rows(array: Array, start: int, stop: int) -> Array:
    shape = (*array.shape[:2], stop - start, array.shape[3])
    at = array.offset + start * array.strides[2]
    return array.view(array.dtype, shape, array.strides, at)
