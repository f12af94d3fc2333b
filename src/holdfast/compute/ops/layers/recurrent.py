"""Recurrent layers: all time steps of one layer in one direction as one op.

ATen has no such ops: it runs dozens of small ops for each step, and those would cost more here
than the arithmetic. `gates` is the input's part of the gates for all steps (one matrix product),
`weight` the hidden state's. `reverse` runs from the last step to the first; results stay in the
order of the input.

Gates are ordered as in torch: i, f, g, o for `_lstm_layer`, r, z, n for `_gru_layer`.
"""

from __future__ import annotations

from typing import Any

from holdfast.compute.ops.layers import recurrent_steps as steps
from holdfast.compute.ops.rules import Meta, like, rule
from holdfast.compute.ops.table import Op, op


def _states(parts: int, saved: int) -> Any:
    """Infer `saved` results of [steps, batch, hidden], the last of them `parts` as wide."""

    def infer(op: Op, bound: dict[str, Any]) -> tuple[Meta, ...]:
        steps, batch, _ = bound["gates"].shape
        hidden, kind = bound["h"].shape[-1], bound["gates"].dtype
        one, wide = Meta((steps, batch, hidden), kind), Meta((steps, batch, hidden * parts), kind)
        return (*[one] * (saved - 1), wide)

    return rule(infer)


def _infer_rnn(op: Op, bound: dict[str, Any]) -> Meta:
    steps, batch, _ = bound["gates"].shape
    return Meta((steps, batch, bound["h"].shape[-1]), bound["gates"].dtype)


def _once(names: str) -> dict[str, str]:
    """Gradient lines that raise: there is no second gradient."""
    return {names: "no_second_gradient('a recurrent layer')"}


op("_lstm_layer(Tensor gates, Tensor h, Tensor c, Tensor weight, bool reverse)"
   " -> (Tensor output, Tensor cells, Tensor active)", _states(4, 3),
   {"gates, h, c, weight": "_lstm_layer_backward(grads[0], grads[1], h, c, weight, result0,"
                           " result1, result2, reverse)"}, steps.lstm_layer)  # fmt: skip
op("_lstm_layer_backward(Tensor grad, Tensor grad_cells, Tensor h, Tensor c, Tensor weight,"
   " Tensor output, Tensor cells, Tensor active, bool reverse)"
   " -> (Tensor, Tensor, Tensor, Tensor)", like("active", "h", "c", "weight"),
   _once("grad, grad_cells, h, c, weight, output, cells, active"),
   steps.lstm_layer_backward)  # fmt: skip
op("_gru_layer(Tensor gates, Tensor h, Tensor weight, Tensor? bias, bool reverse)"
   " -> (Tensor output, Tensor active)", _states(4, 2),
   {"gates, h, weight, bias": "_gru_layer_backward(grads[0], h, weight, bias, result0, result1,"
                              " reverse)"}, steps.gru_layer)  # fmt: skip
op("_gru_layer_backward(Tensor grad, Tensor h, Tensor weight, Tensor? bias, Tensor output,"
   " Tensor active, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)",
   gradient=_once("grad, h, weight, bias, output, active"),
   decomposition=steps.gru_layer_backward)  # fmt: skip
op("_rnn_layer(Tensor gates, Tensor h, Tensor weight, bool relu, bool reverse) -> Tensor",
   rule(_infer_rnn),
   {"gates, h, weight": "_rnn_layer_backward(grad, h, weight, result, relu, reverse)"},
   steps.rnn_layer)  # fmt: skip
op("_rnn_layer_backward(Tensor grad, Tensor h, Tensor weight, Tensor output, bool relu,"
   " bool reverse) -> (Tensor, Tensor, Tensor)", like("output", "h", "weight"),
   _once("grad, h, weight, output"), steps.rnn_layer_backward)  # fmt: skip
