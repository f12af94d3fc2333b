"""Attention in blocks of queries, whose weights stay in the cache.

Covers: the fused op and its gradient, masks, the causal triangle, heads that share keys.
Promise: the whole matrix of weights is never there; blocks are shared out over threads.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy

from holdfast.compute import dtype as formats
from holdfast.compute import threads
from holdfast.compute.compiled import Heads, kernels
from holdfast.compute.engines.numpy.kernels import kernel, widened

_BLOCK = 1 << 18  # weights in a block
_WORTH = 1 << 20  # multiplications; below, waking another thread costs more than it saves


@kernel("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    case = _case(query, key, value, dropout_p, is_causal, attn_mask, scale)
    q, v = case.q, case.v
    out = _heads_inside(q, v.shape[3])
    sums = numpy.empty(q.shape[:3], q.dtype)
    if q.dtype == formats.FLOAT32 and min(out.size, case.k.size) > 0 and kernels() is not None:
        _compiled(case, out, sums)
        return out.astype(query.dtype, copy=False), sums

    def work(number: int) -> None:
        part = case.part(number)
        weights, top, total = _weights(case, part)
        b, h, start, stop, seen = part
        rows = out[b, h, start:stop]
        numpy.matmul(weights, v[b, h // case.share, :seen], out=rows)
        total[total == 0] = 1  # nothing is seen: zeros
        numpy.divide(rows, total[:, None], out=rows)
        numpy.add(numpy.log(total, out=total), top, out=sums[b, h, start:stop])

    case.share_out(work, q.shape[0] * q.shape[1] * case.blocks)
    return out.astype(query.dtype, copy=False), sums


@kernel("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any,
    dropout_p: float, is_causal: bool, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    case = _case(query, key, value, dropout_p, is_causal, attn_mask, scale)
    q, k, v, g = case.q, case.k, case.v, widened(grad_out)
    dq, dk, dv = _heads_inside(q), _heads_inside(k), _heads_inside(v)
    dk.fill(0)
    dv.fill(0)

    def block(part: _Part) -> None:
        b, h, start, stop, seen = part
        # Not from `logsumexp`: scores of some hundreds leave it few digits behind the point.
        weights, _, total = _weights(case, part)
        total[total == 0] = 1
        numpy.divide(weights, total[:, None], out=weights)
        near, gradient, rows = (b, h // case.share), g[b, h, start:stop], q[b, h, start:stop]
        dv[near][:seen] += weights.T @ gradient
        slopes = gradient @ v[near][:seen].T
        # The product with the result is the same sum; this way a weight of 1 leaves nothing.
        slopes -= numpy.einsum("ij,ij->i", weights, slopes)[:, None]
        slopes *= weights
        slopes *= case.factor
        numpy.matmul(slopes, k[near][:seen], out=dq[b, h, start:stop])
        dk[near][:seen] += slopes.T @ rows

    heads = k.shape[1]

    def work(number: int) -> None:  # all that is added to the gradients of one head of keys
        b, near = divmod(number, heads)
        for h in range(near * case.share, (near + 1) * case.share):
            for start in range(0, q.shape[2], case.step):
                block(case.part_at(b, h, start))

    case.share_out(work, k.shape[0] * heads)
    return tuple(a.astype(query.dtype, copy=False) for a in (dq, dk, dv))


def _heads_inside(like: Any, width: int | None = None) -> Any:
    """An array [B, H, L, E] in the order B, L, H, E, in which heads are joined without a copy."""
    many, heads, length, same = like.shape
    return numpy.empty((many, length, heads, width or same), like.dtype).swapaxes(1, 2)


class _Part(NamedTuple):
    """A block of queries of one head, and how many keys it may see."""

    batch: int
    head: int
    start: int
    stop: int
    seen: int


class _Case(NamedTuple):
    """One call: its arrays, in the format that is computed in."""

    q: Any
    k: Any
    v: Any
    mask: Any
    factor: Any
    causal: bool
    share: int  # how many heads of queries have one head of keys
    step: int  # queries in a block
    blocks: int

    @property
    def worth(self) -> bool:
        """Whether there is enough to do for several threads."""
        return self.q.size * self.k.shape[2] >= _WORTH

    def part(self, number: int) -> _Part:
        """Block number so-and-so of all."""
        head, place = divmod(number, self.blocks)
        return self.part_at(*divmod(head, self.q.shape[1]), place * self.step)

    def part_at(self, batch: int, head: int, start: int) -> _Part:
        """The block that begins with a query."""
        stop, keys = min(start + self.step, self.q.shape[2]), self.k.shape[2]
        return _Part(batch, head, start, stop, min(stop, keys) if self.causal else keys)

    def share_out(self, work: Any, count: int) -> None:
        """Do every block."""
        if self.worth:
            threads.share_out(work, count)
        else:
            for number in range(count):
                work(number)


def _case(
    query: Any, key: Any, value: Any, dropout: float, causal: bool, mask: Any, scale: float | None
) -> _Case:
    if dropout > 0:
        raise ValueError("this op has no dropout")
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError("query, key and value have four dimensions")
    if key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3]:
        raise ValueError("query, key and value do not fit each other")
    if query.shape[0] != key.shape[0] or query.shape[1] % max(key.shape[1], 1):
        raise ValueError("the batch or the heads of query and key do not fit each other")
    q, k, v = (widened(a) for a in (query, key, value))
    width = query.shape[3]
    factor = q.dtype.type((1 / math.sqrt(width) if width else 1) if scale is None else scale)
    if mask is not None:
        if mask.dtype == formats.BOOL:
            mask = numpy.where(mask, q.dtype.type(0), q.dtype.type(-numpy.inf))
        whole = (*q.shape[:3], k.shape[2])
        mask = numpy.broadcast_to(mask.astype(q.dtype, copy=False), whole)
    length, keys = q.shape[2], k.shape[2]
    step = max(32, _BLOCK // max(keys, 1))
    if causal:  # smaller blocks leave more of the triangle out
        step = min(step, max(64, length // 8))
    blocks = -(-length // step)
    even = -(-length // blocks) if blocks else step
    share = query.shape[1] // max(key.shape[1], 1)
    return _Case(q, k, v, mask, factor, bool(causal), share, even, blocks)


def _products(case: _Case, part: _Part) -> Any:
    b, h, start, stop, seen = part
    out = threads.scratch.of((stop - start) * seen, case.q.dtype).reshape(stop - start, seen)
    return numpy.matmul(case.q[b, h, start:stop], case.k[b, h // case.share, :seen].T, out=out)


def _scores(case: _Case, part: _Part) -> Any:
    scores = _products(case, part)
    return numpy.multiply(scores, case.factor, out=scores)


def _hide(case: _Case, part: _Part, scores: Any) -> None:
    b, h, start, stop, seen = part
    if case.mask is not None:
        scores += case.mask[b, h, start:stop, :seen]
    if case.causal:
        hidden = numpy.arange(seen)[None, :] > numpy.arange(start, stop)[:, None]
        scores[hidden] = -numpy.inf


def _weights(case: _Case, part: _Part) -> tuple[Any, Any, Any]:
    """Exponentials of the scores less each row's largest, which comes next, then their sums."""
    scores = _scores(case, part)
    _hide(case, part, scores)
    top = scores.max(axis=1, initial=-numpy.inf)
    top[top == -numpy.inf] = 0
    numpy.subtract(scores, top[:, None], out=scores)
    numpy.exp(scores, out=scores)
    return scores, top, scores.sum(axis=1)


# ---- by the C loop


def _compiled(case: _Case, out: Any, sums: Any) -> None:
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
        _packed(k, many * near, keys, depth),
        _packed(v.swapaxes(2, 3), many * near, width, keys),
    ]
    block = 240 if length * keys * depth > _WORTH else length
    blocks = -(-length // block)

    def work(number: int) -> None:
        head, start = divmod(number, blocks)
        b, h = divmod(head, heads)
        place = b * near + h // case.share
        room = threads.scratch.of(scratch, q.dtype, 1)
        loops.holdfast_attention(
            here, _at(q, b, h), *(p.ctypes.data + place * p.strides[0] for p in packed),
            None if mask is None else _at(mask, b, h), _at(out, b, h), _at(sums, b, h),
            start * block, min((start + 1) * block, length), room.ctypes.data,
        )  # fmt: skip

    case.share_out(work, many * heads * blocks)


def _packed(array: Any, heads: int, outputs: int, depth: int) -> Any:
    """Matrices [outputs, depth] of all heads in the order in which the loop takes them."""
    loops, high = kernels(), kernels().holdfast_high()
    packed = numpy.empty((heads, -(-outputs // high) * high * depth), numpy.float32)
    steps = [step // 4 for step in array.strides[2:]]

    def work(number: int) -> None:
        loops.holdfast_pack(
            _at(array, *divmod(number, array.shape[1])), outputs, depth, *steps, high,
            packed[number].ctypes.data,
        )  # fmt: skip

    if packed.size >= _WORTH // 8:
        threads.share_out(work, heads)
    else:
        for number in range(heads):
            work(number)
    return packed


def _at(array: Any, batch: int, head: int) -> int:
    """The address of one head."""
    return array.ctypes.data + batch * array.strides[0] + head * array.strides[1]
