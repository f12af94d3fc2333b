"""Scaled dot product attention, forward and backward, in blocks of queries.

The whole matrix of weights is never in memory. Several heads of queries may share a head of keys.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as dtypes
from holdfast.compute.engines.numpy import threads
from holdfast.compute.engines.numpy.c_kernels import Heads, kernels
from holdfast.compute.engines.numpy.kernels import kernel, widen
from holdfast.compute.ops.layers.attention import plan_attention

_BLOCK = 1 << 18  # weights in a block
_WORTH = 1 << 20  # multiplications; for fewer, waking another thread costs more than it saves


@kernel("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    case = _prepare(query, key, value, dropout_p, is_causal, attn_mask, scale)
    q, v = case.q, case.v
    out = _empty_heads_inside(q, v.shape[3])
    sums = numpy.empty(q.shape[:3], q.dtype)
    if q.dtype == dtypes.FLOAT32 and min(out.size, case.k.size) > 0 and kernels() is not None:
        _run_c_loop(case, out, sums)
        return out.astype(query.dtype, copy=False), sums

    def work(number: int) -> None:
        head, block = divmod(number, case.blocks)
        part = case.part_at(*divmod(head, q.shape[1]), block * case.step)
        weights, top, total = _weights(case, part)
        b, h, start, stop, seen = part
        rows = out[b, h, start:stop]
        numpy.matmul(weights, v[b, h // case.share, :seen], out=rows)
        total[total == 0] = 1  # every key is masked: the result is 0
        numpy.divide(rows, total[:, None], out=rows)
        numpy.add(numpy.log(total, out=total), top, out=sums[b, h, start:stop])

    case.share_out(work, q.shape[0] * q.shape[1] * case.blocks)
    return out.astype(query.dtype, copy=False), sums


@kernel("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any,
    dropout_p: float, is_causal: bool, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    case = _prepare(query, key, value, dropout_p, is_causal, attn_mask, scale)
    q, k, v, g = case.q, case.k, case.v, widen(grad_out)
    dq, dk, dv = _empty_heads_inside(q), _empty_heads_inside(k), _empty_heads_inside(v)
    dk.fill(0)
    dv.fill(0)

    def block(part: _QueryBlock) -> None:
        b, h, start, stop, seen = part
        # Not from `logsumexp`, which has few fractional digits for scores of several hundred.
        weights, _, total = _weights(case, part)
        total[total == 0] = 1
        numpy.divide(weights, total[:, None], out=weights)
        near, gradient, rows = (b, h // case.share), g[b, h, start:stop], q[b, h, start:stop]
        dv[near][:seen] += weights.T @ gradient
        slopes = gradient @ v[near][:seen].T
        # Equal to the product of gradient and result, but exactly 0 for a weight of 1.
        slopes -= numpy.einsum("ij,ij->i", weights, slopes)[:, None]
        slopes *= weights
        slopes *= case.factor
        numpy.matmul(slopes, k[near][:seen], out=dq[b, h, start:stop])
        dk[near][:seen] += slopes.T @ rows

    heads = k.shape[1]

    def work(number: int) -> None:  # everything that adds to the gradients of one head of keys
        b, near = divmod(number, heads)
        for h in range(near * case.share, (near + 1) * case.share):
            for start in range(0, q.shape[2], case.step):
                block(case.part_at(b, h, start))

    case.share_out(work, k.shape[0] * heads)
    return tuple(a.astype(query.dtype, copy=False) for a in (dq, dk, dv))


def _empty_heads_inside(like: Any, width: int | None = None) -> Any:
    """An empty [B, H, L, E] array in memory order B, L, H, E: joining heads needs no copy."""
    many, heads, length, same = like.shape
    return numpy.empty((many, length, heads, width or same), like.dtype).swapaxes(1, 2)


# Batch, head, first query, end of the queries, and how many keys they attend to.
_QueryBlock = tuple[int, int, int, int, int]


class _AttentionCall(NamedTuple):
    """The arguments of one call, in the working dtype, and how they are divided into blocks."""

    q: Any
    k: Any
    v: Any
    mask: Any
    factor: Any
    causal: bool
    share: int  # heads of queries for each head of keys
    step: int  # queries in a block
    blocks: int

    def part_at(self, batch: int, head: int, start: int) -> _QueryBlock:
        """The block that begins with query `start`."""
        stop, keys = min(start + self.step, self.q.shape[2]), self.k.shape[2]
        return batch, head, start, stop, min(stop, keys) if self.causal else keys

    def share_out(self, work: Any, count: int) -> None:
        """`threads.share_out`, on several threads if there is enough to do."""
        threads.share_out(work, count, self.q.size * self.k.shape[2] >= _WORTH)


def _prepare(
    query: Any, key: Any, value: Any, dropout: float, causal: bool, mask: Any, scale: float | None
) -> _AttentionCall:
    factor, share = plan_attention(query, key, value, dropout, scale)
    q, k, v = (widen(a) for a in (query, key, value))
    if mask is not None:
        if mask.dtype == dtypes.BOOL:
            mask = numpy.where(mask, q.dtype.type(0), q.dtype.type(-numpy.inf))
        shape = (*q.shape[:3], k.shape[2])
        mask = numpy.broadcast_to(mask.astype(q.dtype, copy=False), shape)
    length, keys = q.shape[2], k.shape[2]
    step = max(32, _BLOCK // max(keys, 1))
    if causal:  # smaller blocks skip more of the masked triangle
        step = min(step, max(64, length // 8))
    blocks = -(-length // step)
    even = -(-length // blocks) if blocks else step
    return _AttentionCall(q, k, v, mask, q.dtype.type(factor), bool(causal), share, even, blocks)


def _scores(case: _AttentionCall, part: _QueryBlock) -> Any:
    """Scaled and masked products of queries and keys."""
    b, h, start, stop, seen = part
    scores = threads.scratch.of((stop - start) * seen, case.q.dtype).reshape(stop - start, seen)
    numpy.matmul(case.q[b, h, start:stop], case.k[b, h // case.share, :seen].T, out=scores)
    numpy.multiply(scores, case.factor, out=scores)
    if case.mask is not None:
        scores += case.mask[b, h, start:stop, :seen]
    if case.causal:
        hidden = numpy.arange(seen)[None, :] > numpy.arange(start, stop)[:, None]
        scores[hidden] = -numpy.inf
    return scores


def _weights(case: _AttentionCall, part: _QueryBlock) -> tuple[Any, Any, Any]:
    """exp(scores - row maximum), the row maxima, and the sums of the exponentials."""
    scores = _scores(case, part)
    top = scores.max(axis=1, initial=-numpy.inf)
    top[top == -numpy.inf] = 0
    numpy.subtract(scores, top[:, None], out=scores)
    numpy.exp(scores, out=scores)
    return scores, top, scores.sum(axis=1)


# ---- C loop


def _run_c_loop(case: _AttentionCall, out: Any, sums: Any) -> None:
    q, k, v, mask = case.q, case.k, case.v, case.mask
    loops, (many, heads, length, depth) = kernels(), q.shape
    near, keys, width = k.shape[1], k.shape[2], v.shape[3]
    about = Heads(
        keys, width, depth, q.strides[2] // 4, q.strides[3] // 4, out.strides[2] // 4,
        *((0, 0) if mask is None else (step // 4 for step in mask.strides[2:])), case.causal,
        case.factor,
    )  # fmt: skip
    here = ctypes.addressof(about)
    scratch = loops.holdfast_attention_scratch(here)
    packed = [
        _pack(k, many * near, keys, depth),
        _pack(v.swapaxes(2, 3), many * near, width, keys),
    ]
    block = 240 if length * keys * depth > _WORTH else length
    blocks = -(-length // block)

    def work(number: int) -> None:
        head, start = divmod(number, blocks)
        b, h = divmod(head, heads)
        key_head = b * near + h // case.share
        buffer = threads.scratch.of(scratch, q.dtype, 1)
        loops.holdfast_attention(
            here, _address(q, b, h), *(p.ctypes.data + key_head * p.strides[0] for p in packed),
            None if mask is None else _address(mask, b, h), _address(out, b, h),
            _address(sums, b, h), start * block, min((start + 1) * block, length),
            buffer.ctypes.data,
        )  # fmt: skip

    case.share_out(work, many * heads * blocks)


def _pack(array: Any, heads: int, outputs: int, depth: int) -> Any:
    """Pack the matrices [outputs, depth] of all heads as the loop reads them."""
    loops, high = kernels(), kernels().holdfast_high()
    packed = numpy.empty((heads, -(-outputs // high) * high * depth), numpy.float32)
    steps = [step // 4 for step in array.strides[2:]]

    def work(number: int) -> None:
        loops.holdfast_pack(
            _address(array, *divmod(number, array.shape[1])), outputs, depth, *steps, high,
            packed[number].ctypes.data,
        )  # fmt: skip

    threads.share_out(work, heads, packed.size >= _WORTH // 8)
    return packed


def _address(array: Any, batch: int, head: int) -> int:
    return array.ctypes.data + batch * array.strides[0] + head * array.strides[1]
