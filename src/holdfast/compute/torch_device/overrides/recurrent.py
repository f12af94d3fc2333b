"""One step of a recurrent layer: torch's fused LSTM and GRU cells, and their gradients.

What a step keeps for its gradient is the gates after their activation.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.compute.torch_device.overrides.tensor_overloads import special

Tensor = torch.Tensor


def _sum(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


@special("_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The next state, the next cell, and the gates: in, forget, new, out."""
    gates = _sum(_sum(input_gates + hidden_gates, input_bias), hidden_bias)
    hidden = cx.shape[1]
    new = gates[:, 2 * hidden : 3 * hidden].tanh()
    gates = gates.sigmoid_()
    gates[:, 2 * hidden : 3 * hidden] = new
    let_in, forget, _, let_out = gates.chunk(4, 1)
    cell = (forget * cx).addcmul_(let_in, new)
    return let_out * cell.tanh(), cell, gates


@special("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of the gates, the cell and the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    let_in, forget, new, let_out = workspace.chunk(4, 1)
    curved = cy.tanh()
    to_cell = torch.zeros_like(cy) if grad_cy is None else grad_cy
    if grad_hy is not None:
        to_cell = to_cell + grad_hy * let_out * (1 - curved * curved)
    to_out = torch.zeros_like(cy) if grad_hy is None else grad_hy * curved
    to_in, to_forget = to_cell * new * _slope(let_in), to_cell * cx * _slope(forget)
    to_new = to_cell * let_in * (1 - new * new)
    grad_gates = torch.cat([to_in, to_forget, to_new, to_out * _slope(let_out)], 1)
    return grad_gates, to_cell * forget, grad_gates.sum(0) if has_bias else None


def _slope(sigmoid: Tensor) -> Tensor:
    return sigmoid * (1 - sigmoid)


@special("_thnn_fused_lstm_cell_backward")
def lstm_cell_backward_of_all(*args: Any, **named: Any) -> tuple[Tensor | None, ...]:
    """Gradients of both gates, the cell and both biases."""
    gates, cell, bias = lstm_cell_backward(*args, **named)
    return gates, gates, cell, bias, bias


@special("_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The next state; and reset, update, new, the state, and the input of the reset gate."""
    given, held = _sum(input_gates, input_bias), _sum(hidden_gates, hidden_bias)
    hidden = hx.shape[1]
    both = (given[:, : 2 * hidden] + held[:, : 2 * hidden]).sigmoid_()
    reset, update = both.chunk(2, 1)
    through = held[:, 2 * hidden :]
    new = torch.addcmul(given[:, 2 * hidden :], reset, through).tanh_()
    return new + update * (hx - new), torch.cat([both, new, hx, through], 1)


@special("_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of both gates, the state and both biases."""
    reset, update, new, state, through = workspace.chunk(5, 1)
    to_new = grad_hy * (1 - update) * (1 - new * new)
    to_update = grad_hy * (state - new) * _slope(update)
    to_reset = to_new * through * _slope(reset)
    given = torch.cat([to_reset, to_update, to_new], 1)
    held = torch.cat([to_reset, to_update, to_new * reset], 1)
    biases = (given.sum(0), held.sum(0)) if has_bias else (None, None)
    return given, held, grad_hy * update, *biases
