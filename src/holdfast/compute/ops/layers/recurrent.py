"""Recurrent layers: all time steps of one layer in one direction as one op.

ATen has no such ops: it runs dozens of small ops for each step, and those would cost more here
than the arithmetic. `gates` is the input's part of the gates for all steps (one matrix product),
`weight` the hidden state's. `reverse` runs from the last step to the first; results stay in the
order of the input.

Gates are ordered as in torch: i, f, g, o for `_lstm_layer`, r, z, n for `_gru_layer`.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute import functional as F
from holdfast.compute.ops.rules import Meta, like, rule
from holdfast.compute.ops.table import Op, op

Tensor = Any

# ---- step by step, for engines without a kernel


def _order(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _stack_layers(found: dict[int, Tensor]) -> Tensor:
    return F.stack([found[step] for step in sorted(found)], 0)


def _before(first: Tensor, states: Tensor, step: int, reverse: bool) -> Tensor:
    at = step + 1 if reverse else step - 1
    return F.select(states, 0, at) if 0 <= at < states.shape[0] else first


def _product(gates: Tensor, before: Tensor) -> Tensor:
    return F.matmul(F.transpose(gates, 0, 1), before)


def _lstm_layer(gates: Tensor, h: Tensor, c: Tensor, weight: Tensor, reverse: bool) -> Any:
    outs, cells, active = {}, {}, {}
    for step in _order(gates.shape[0], reverse):
        sums = F.select(gates, 0, step) + F.linear(h, weight)
        i, f, g, o = F.split(sums, h.shape[-1], -1)
        i, f, g, o = F.sigmoid(i), F.sigmoid(f), F.tanh(g), F.sigmoid(o)
        c = f * c + i * g
        h = o * F.tanh(c)
        outs[step], cells[step], active[step] = h, c, F.cat([i, f, g, o], -1)
    return _stack_layers(outs), _stack_layers(cells), _stack_layers(active)


def _lstm_layer_backward(
    grad: Tensor, grad_cells: Tensor, h: Tensor, c: Tensor, weight: Tensor,
    output: Tensor, cells: Tensor, active: Tensor, reverse: bool,
) -> Any:  # fmt: skip
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
    return _stack_layers(found), down, along, total


def _gru_layer(gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> Any:
    outs, active = {}, {}
    for step in _order(gates.shape[0], reverse):
        given = F.split(F.select(gates, 0, step), h.shape[-1], -1)
        hidden = F.split(F.linear(h, weight, bias), h.shape[-1], -1)
        r, z = F.sigmoid(given[0] + hidden[0]), F.sigmoid(given[1] + hidden[1])
        n = F.tanh(given[2] + r * hidden[2])
        h = n + z * (h - n)
        outs[step], active[step] = h, F.cat([r, z, n, hidden[2]], -1)
    return _stack_layers(outs), _stack_layers(active)


def _gru_layer_backward(
    grad: Tensor, h: Tensor, weight: Tensor, bias: Tensor, output: Tensor, active: Tensor,
    reverse: bool,
) -> Any:  # fmt: skip
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
    return _stack_layers(found), down, total, sums


def _rnn_layer(gates: Tensor, h: Tensor, weight: Tensor, relu: bool, reverse: bool) -> Tensor:
    outs = {}
    for step in _order(gates.shape[0], reverse):
        sums = F.select(gates, 0, step) + F.linear(h, weight)
        h = outs[step] = F.relu(sums) if relu else F.tanh(sums)
    return _stack_layers(outs)


def _rnn_layer_backward(
    grad: Tensor, h: Tensor, weight: Tensor, output: Tensor, relu: bool, reverse: bool
) -> Any:
    found, total, down = {}, F.zeros_like(weight), F.zeros_like(h)
    for step in _order(output.shape[0], not reverse):
        out = F.select(output, 0, step)
        down = down + F.select(grad, 0, step)
        found[step] = F.threshold_backward(down, out, 0) if relu else down * (1 - out * out)
        total = total + _product(found[step], _before(h, output, step, reverse))
        down = F.matmul(found[step], weight)
    return _stack_layers(found), down, total


# ---- the ops


def _infer_states(op: Op, bound: dict[str, Any]) -> Any:
    """[steps, batch, hidden] of each result; `active` has four parts."""
    steps, batch, _ = bound["gates"].shape
    hidden, kind = bound["h"].shape[-1], bound["gates"].dtype
    one, wide = Meta((steps, batch, hidden), kind), Meta((steps, batch, 4 * hidden), kind)
    return (*[one] * (op.schema.returns - 1), wide) if op.schema.returns > 1 else one


_STATES = rule(_infer_states)


def _once(names: str) -> dict[str, str]:
    """Gradient lines that raise: there is no second gradient."""
    return {names: "no_second_gradient('a recurrent layer')"}


op("_lstm_layer(Tensor gates, Tensor h, Tensor c, Tensor weight, bool reverse)"
   " -> (Tensor output, Tensor cells, Tensor active)", _STATES,
   {"gates, h, c, weight": "_lstm_layer_backward(grads[0], grads[1], h, c, weight, result0,"
                           " result1, result2, reverse)"}, _lstm_layer)  # fmt: skip
op("_lstm_layer_backward(Tensor grad, Tensor grad_cells, Tensor h, Tensor c, Tensor weight,"
   " Tensor output, Tensor cells, Tensor active, bool reverse)"
   " -> (Tensor, Tensor, Tensor, Tensor)", like("active", "h", "c", "weight"),
   _once("grad, grad_cells, h, c, weight, output, cells, active"),
   _lstm_layer_backward)  # fmt: skip
op("_gru_layer(Tensor gates, Tensor h, Tensor weight, Tensor? bias, bool reverse)"
   " -> (Tensor output, Tensor active)", _STATES,
   {"gates, h, weight, bias": "_gru_layer_backward(grads[0], h, weight, bias, result0, result1,"
                              " reverse)"}, _gru_layer)  # fmt: skip
op("_gru_layer_backward(Tensor grad, Tensor h, Tensor weight, Tensor? bias, Tensor output,"
   " Tensor active, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)",
   gradient=_once("grad, h, weight, bias, output, active"),
   decomposition=_gru_layer_backward)  # fmt: skip
op("_rnn_layer(Tensor gates, Tensor h, Tensor weight, bool relu, bool reverse) -> Tensor",
   _STATES,
   {"gates, h, weight": "_rnn_layer_backward(grad, h, weight, result, relu, reverse)"},
   _rnn_layer)  # fmt: skip
op("_rnn_layer_backward(Tensor grad, Tensor h, Tensor weight, Tensor output, bool relu,"
   " bool reverse) -> (Tensor, Tensor, Tensor)", like("output", "h", "weight"),
   _once("grad, h, weight, output"), _rnn_layer_backward)  # fmt: skip
