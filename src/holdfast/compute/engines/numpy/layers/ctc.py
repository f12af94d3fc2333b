"""Connectionist temporal classification loss and its gradient.

All samples advance together, one time step after the other; probabilities are logarithms.
"""

from __future__ import annotations

from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import cast, kernel, widen


class _Lattice:
    """For every sample, its labels with blanks between them, padded to one length."""

    def __init__(
        self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
    ) -> None:
        self.batched = log_probs.ndim == 3
        values = widen(log_probs if self.batched else log_probs[:, None])
        self.steps, self.samples, self.classes = values.shape
        self.values = values.transpose(1, 0, 2)
        self.lengths = numpy.asarray(input_lengths, numpy.int64).reshape(-1)
        self.counts = numpy.asarray(target_lengths, numpy.int64).reshape(-1)
        self._check(blank)
        longest = int(self.counts.max(initial=0))
        labels = numpy.full((self.samples, longest), blank, numpy.int64)
        kept = numpy.arange(longest) < self.counts[:, None]
        labels[kept] = self._labels(targets, kept)
        self.states = numpy.full((self.samples, 2 * longest + 1), blank, numpy.int64)
        self.states[:, 1::2] = labels
        self.there = numpy.arange(2 * longest + 1) <= 2 * self.counts[:, None]
        # A path may skip the blank between two labels, unless they are equal.
        self.skips = numpy.zeros(self.states.shape, bool)
        self.skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
        shape = (self.samples, self.steps, 2 * longest + 1)
        picked = numpy.broadcast_to(self.states[:, None], shape)
        self.emitted = numpy.take_along_axis(self.values, picked, 2)

    def _check(self, blank: int) -> None:
        if not 0 <= blank < self.classes:
            raise IndexError(f"the blank {blank} is not among {self.classes} classes")
        if self.lengths.shape != (self.samples,) or self.counts.shape != (self.samples,):
            raise ValueError(f"input_lengths and target_lengths must have {self.samples} elements")
        if self.samples and self.lengths.max() > self.steps:
            raise ValueError(f"an input is longer than {self.steps} steps")

    def _labels(self, targets: Any, kept: Any) -> Any:
        if targets.ndim == 1 and self.batched:
            if targets.size < self.counts.sum():
                raise ValueError(
                    f"{targets.size} labels, but target_lengths sum to {self.counts.sum()}"
                )
            return targets[: self.counts.sum()]
        rows = targets if targets.ndim == 2 else targets[None]
        if rows.shape[1] < kept.shape[1]:
            raise ValueError(f"a target is longer than {rows.shape[1]} labels")
        return rows[:, : kept.shape[1]][kept]

    def last(self) -> tuple[Any, Any]:
        """The two states an alignment can end in; the second is missing for empty targets."""
        return 2 * self.counts, numpy.maximum(2 * self.counts - 1, 0)


def _logsumexp(*logs: Any) -> Any:
    """log(sum(exp(logs))), rounded as in torch."""
    top = logs[0]
    for one in logs[1:]:
        top = numpy.maximum(top, one)
    top = numpy.where(numpy.isneginf(top), top.dtype.type(0), top)
    found = _in_float64(numpy.exp, logs[0] - top)
    for one in logs[1:]:
        found += _in_float64(numpy.exp, one - top)
    with numpy.errstate(divide="ignore"):
        return _in_float64(numpy.log, found) + top


def _in_float64(function: Any, values: Any) -> Any:
    return function(values.astype(numpy.float64)).astype(values.dtype)


def _shift(row: Any, by: int) -> Any:
    made = numpy.full_like(row, -numpy.inf)
    if by > 0:
        made[:, by:] = row[:, :-by]
    else:
        made[:, :by] = row[:, -by:]
    return made


def _forward(lattice: _Lattice) -> tuple[Any, Any]:
    low = lattice.values.dtype.type(-numpy.inf)
    alpha = numpy.full(lattice.emitted.shape, low, lattice.values.dtype)
    if lattice.steps:
        alpha[:, 0, :2] = lattice.emitted[:, 0, :2]
        alpha[:, 0] = numpy.where(lattice.there, alpha[:, 0], low)
    for step in range(1, lattice.steps):
        before = alpha[:, step - 1]
        skipped = numpy.where(lattice.skips, _shift(before, 2), low)
        found = _logsumexp(before, _shift(before, 1), skipped) + lattice.emitted[:, step]
        running = lattice.there & (step < lattice.lengths)[:, None]
        alpha[:, step] = numpy.where(running, found, low)
    return _likelihood(lattice, alpha), alpha


def _likelihood(lattice: _Lattice, alpha: Any) -> Any:
    end, label = lattice.last()
    sample, step = numpy.arange(lattice.samples), numpy.maximum(lattice.lengths - 1, 0)
    if not lattice.steps:
        return numpy.where(lattice.counts == 0, 0, numpy.inf).astype(alpha.dtype)
    ended, unended = alpha[sample, step, end], alpha[sample, step, label]
    unended = numpy.where(lattice.counts == 0, -numpy.inf, unended)
    found = -_logsumexp(ended, unended)
    nothing = numpy.where(lattice.counts == 0, 0, numpy.inf)
    return numpy.where(lattice.lengths == 0, nothing, found).astype(alpha.dtype)


def _backward(lattice: _Lattice) -> Any:
    low = lattice.values.dtype.type(-numpy.inf)
    beta = numpy.full(lattice.emitted.shape, low, lattice.values.dtype)
    end, label = lattice.last()
    states = numpy.arange(lattice.states.shape[1])
    some = numpy.asarray(lattice.counts > 0)[:, None]
    final = (states == end[:, None]) | ((states == label[:, None]) & some)
    ahead = numpy.zeros_like(lattice.skips)
    ahead[:, :-2] = lattice.skips[:, 2:]
    for step in range(lattice.steps - 1, -1, -1):
        found = numpy.full(final.shape, low, beta.dtype)
        if step + 1 < lattice.steps:
            after = beta[:, step + 1]
            skipped = numpy.where(ahead, _shift(after, -2), low)
            found = _logsumexp(after, _shift(after, -1), skipped)
        start = numpy.where(final, beta.dtype.type(0), low)
        ends = numpy.equal(lattice.lengths, step + 1)[:, None]
        found = numpy.where(ends, start, found)
        running = lattice.there & (step < lattice.lengths)[:, None]
        beta[:, step] = numpy.where(running, found + lattice.emitted[:, step], low)
    return beta


def _by_class(lattice: _Lattice, paths: Any) -> Any:
    """The log probability of all paths through each class at each step."""
    found = numpy.full(lattice.values.shape, -numpy.inf, paths.dtype)
    sample = numpy.arange(lattice.samples)
    for state in reversed(range(paths.shape[2])):
        labels = lattice.states[:, state]
        found[sample, :, labels] = _logsumexp(found[sample, :, labels], paths[:, :, state])
    return found


@kernel("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    lattice = _Lattice(log_probs, targets, input_lengths, target_lengths, blank)
    with numpy.errstate(invalid="ignore"):
        lost, alpha = _forward(lattice)
    lost, alpha = cast(lost, log_probs.dtype), cast(alpha, log_probs.dtype)
    return (lost, alpha) if lattice.batched else (lost[0], alpha[0])


@kernel("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any,
    neg_log_likelihood: Any, log_alpha: Any, blank: int, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    lattice = _Lattice(log_probs, targets, input_lengths, target_lengths, blank)
    lost = widen(neg_log_likelihood).reshape(-1, 1, 1)
    alpha = widen(log_alpha).reshape(lattice.emitted.shape)
    with numpy.errstate(invalid="ignore"):
        through = _by_class(lattice, alpha + _backward(lattice))
        found = _in_float64(numpy.exp, through + lost - lattice.values)
        found = _in_float64(numpy.exp, lattice.values) - found
        found = found * widen(grad).reshape(-1, 1, 1)
    if zero_infinity:
        found = numpy.where(numpy.isinf(lost), 0, found)
    running = numpy.arange(lattice.steps) < lattice.lengths[:, None]
    found = numpy.where(running[:, :, None], found, 0).transpose(1, 0, 2)
    return cast(found, log_probs.dtype).reshape(log_probs.shape)
