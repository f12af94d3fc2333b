"""Decompositions of the ops of `recurrent`, step by step, for engines without a kernel for them."""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F

Tensor = Any


def _order(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _stacked(found: dict[int, Tensor]) -> Tensor:
    return F.stack([found[step] for step in sorted(found)], 0)


def _before(first: Tensor, states: Tensor, step: int, reverse: bool) -> Tensor:
    """The state before a step."""
    at = step + 1 if reverse else step - 1
    return F.select(states, 0, at) if 0 <= at < states.shape[0] else first


def _product(gates: Tensor, before: Tensor) -> Tensor:
    return F.matmul(F.transpose(gates, 0, 1), before)


def lstm_layer(gates: Tensor, h: Tensor, c: Tensor, weight: Tensor, reverse: bool) -> Any:
    """`_lstm_layer`."""
    outs, cells, active = {}, {}, {}
    for step in _order(gates.shape[0], reverse):
        sums = F.select(gates, 0, step) + F.linear(h, weight)
        i, f, g, o = F.split(sums, h.shape[-1], -1)
        i, f, g, o = F.sigmoid(i), F.sigmoid(f), F.tanh(g), F.sigmoid(o)
        c = f * c + i * g
        h = o * F.tanh(c)
        outs[step], cells[step], active[step] = h, c, F.cat([i, f, g, o], -1)
    return _stacked(outs), _stacked(cells), _stacked(active)


def lstm_layer_backward(
    grad: Tensor, grad_cells: Tensor, h: Tensor, c: Tensor, weight: Tensor,
    output: Tensor, cells: Tensor, active: Tensor, reverse: bool,
) -> Any:  # fmt: skip
    """`_lstm_layer_backward`."""
    found, total = {}, F.zeros_like(weight)
    down, along = F.zeros_like(h), F.zeros_like(c)
    for step in _order(active.shape[0], not reverse):
        i, f, g, o = F.split(F.select(active, 0, step), h.shape[-1], -1)
        curved = F.tanh(F.select(cells, 0, step))
        down = down + F.select(grad, 0, step)
        along = along + F.select(grad_cells, 0, step) + down * o * (1 - curved * curved)
        kept = _before(c, cells, step, reverse)
        parts = [
            *(along * g * i * (1 - i), along * kept * f * (1 - f)),
            *(along * i * (1 - g * g), down * curved * o * (1 - o)),
        ]
        found[step] = F.cat(parts, -1)
        total = total + _product(found[step], _before(h, output, step, reverse))
        down, along = F.matmul(found[step], weight), along * f
    return _stacked(found), down, along, total


def gru_layer(gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Any:
    """`_gru_layer`."""
    outs, active = {}, {}
    for step in _order(gates.shape[0], reverse):
        given = F.split(F.select(gates, 0, step), h.shape[-1], -1)
        hidden = F.split(F.linear(h, weight, bias), h.shape[-1], -1)
        r, z = F.sigmoid(given[0] + hidden[0]), F.sigmoid(given[1] + hidden[1])
        n = F.tanh(given[2] + r * hidden[2])
        h = n + z * (h - n)
        outs[step], active[step] = h, F.cat([r, z, n, hidden[2]], -1)
    return _stacked(outs), _stacked(active)


def gru_layer_backward(
    grad: Tensor, h: Tensor, weight: Tensor, bias: Tensor, output: Tensor, active: Tensor,
    reverse: bool,
) -> Any:  # fmt: skip
    """`_gru_layer_backward`."""
    found, total, sums = {}, F.zeros_like(weight), F.zeros_like(F.select(weight, 1, 0))
    down = F.zeros_like(h)
    for step in _order(active.shape[0], not reverse):
        r, z, n, carried = F.split(F.select(active, 0, step), h.shape[-1], -1)
        before = _before(h, output, step, reverse)
        down = down + F.select(grad, 0, step)
        new = down * (1 - z) * (1 - n * n)
        reset, update = new * carried * r * (1 - r), down * (before - n) * z * (1 - z)
        inner = F.cat([reset, update, new * r], -1)
        found[step] = F.cat([reset, update, new], -1)
        total, sums = total + _product(inner, before), sums + F.sum(inner, [0])
        down = down * z + F.matmul(inner, weight)
    return _stacked(found), down, total, sums


def rnn_layer(gates: Tensor, h: Tensor, weight: Tensor, relu: bool, reverse: bool) -> Tensor:
    """`_rnn_layer`."""
    outs = {}
    for step in _order(gates.shape[0], reverse):
        sums = F.select(gates, 0, step) + F.linear(h, weight)
        h = outs[step] = F.relu(sums) if relu else F.tanh(sums)
    return _stacked(outs)


def rnn_layer_backward(
    grad: Tensor, h: Tensor, weight: Tensor, output: Tensor, relu: bool, reverse: bool
) -> Any:
    """`_rnn_layer_backward`."""
    found, total, down = {}, F.zeros_like(weight), F.zeros_like(h)
    for step in _order(output.shape[0], not reverse):
        out = F.select(output, 0, step)
        down = down + F.select(grad, 0, step)
        found[step] = F.threshold_backward(down, out, 0) if relu else down * (1 - out * out)
        total = total + _product(found[step], _before(h, output, step, reverse))
        down = F.matmul(found[step], weight)
    return _stacked(found), down, total
