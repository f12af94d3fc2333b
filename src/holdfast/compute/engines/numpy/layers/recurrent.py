"""LSTM, GRU and RNN layers: a loop over steps, with all else computed for all steps at once.

A step is one matrix product and a few passes, into buffers allocated before the loop. Sigmoids are
computed as (1 + tanh(x / 2)) / 2: one tanh for all gates of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from holdfast.compute.engines.numpy.kernels import kernel, widen

Array = Any


def _steps(count: int, reverse: bool) -> range:
    return range(count - 1, -1, -1) if reverse else range(count)


def _layer_kernel(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that computes in float32 or wider; the first argument gives the dtype."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any) -> Any:
            found = function(*(widen(a) if isinstance(a, numpy.ndarray) else a for a in args))
            if not isinstance(found, tuple):
                return found.astype(args[0].dtype, copy=False)
            return tuple(a.astype(args[0].dtype, copy=False) for a in found)

        return kernel(name)(compute)

    return decorate


def _previous_states(first: Array, states: Array, reverse: bool) -> Array:
    shifted = numpy.empty_like(states)
    if not len(states):
        return shifted
    if reverse:
        shifted[:-1], shifted[-1] = states[1:], first
    else:
        shifted[1:], shifted[0] = states[:-1], first
    return shifted


def _flat(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _weight_gradient(gates: Array, before: Array) -> Array:
    return _flat(gates).T @ _flat(before)


@_layer_kernel("_lstm_layer")
def lstm_layer(gates: Array, h: Array, c: Array, weight: Array, reverse: bool) -> Any:
    steps, batch, width = gates.shape
    hidden = width // 4
    scale = numpy.full(width, 0.5, gates.dtype)
    scale[2 * hidden : 3 * hidden] = 1
    shift = 1 - scale
    turned = numpy.ascontiguousarray(weight.T) * scale
    active = gates * scale
    output = numpy.empty((steps, batch, hidden), gates.dtype)
    cells = numpy.empty_like(output)
    product = numpy.empty((batch, width), gates.dtype)
    scratch = numpy.empty((batch, hidden), gates.dtype)
    for step in _steps(steps, reverse):
        now, cell, out = active[step], cells[step], output[step]
        now += numpy.matmul(h, turned, out=product)
        numpy.tanh(now, out=now)
        now *= scale
        now += shift
        i, f, g, o = (now[:, n * hidden : (n + 1) * hidden] for n in range(4))
        numpy.multiply(f, c, out=cell)
        cell += numpy.multiply(i, g, out=scratch)
        numpy.tanh(cell, out=out)
        out *= o
        h, c = out, cell
    return output, cells, active


@_layer_kernel("_lstm_layer_backward")
def lstm_layer_backward(
    grad: Array, grad_cells: Array, h: Array, c: Array, weight: Array,
    output: Array, cells: Array, active: Array, reverse: bool,
) -> Any:  # fmt: skip
    hidden = cells.shape[-1]
    i, f, g, o = (active[..., n * hidden : (n + 1) * hidden] for n in range(4))
    curved = numpy.tanh(cells)
    to_cell = o * (1 - curved * curved)
    # The factors of the gates' gradients are known for all steps before the loop.
    slopes = active * (1 - active)
    slopes[..., 2 * hidden : 3 * hidden] = 1 - g * g
    for gate, factor in enumerate((g, _previous_states(c, cells, reverse), i, curved)):
        slopes[..., gate * hidden : (gate + 1) * hidden] *= factor
    forget = numpy.ascontiguousarray(f)
    down, along = numpy.zeros_like(h), numpy.zeros_like(c)
    for step in _steps(len(active), not reverse):
        down += grad[step]
        along += grad_cells[step]
        along += down * to_cell[step]
        now = slopes[step]
        now[:, : 3 * hidden].reshape(-1, 3, hidden)[...] *= along[:, None]
        now[:, 3 * hidden :] *= down
        along *= forget[step]
        down = now @ weight
    found = _weight_gradient(slopes, _previous_states(h, output, reverse))
    return slopes, down, along, found


@_layer_kernel("_gru_layer")
def gru_layer(gates: Array, h: Array, weight: Array, bias: Array | None, reverse: bool) -> Any:
    steps, batch, width = gates.shape
    hidden = width // 3
    turned = numpy.ascontiguousarray(weight.T)
    output = numpy.empty((steps, batch, hidden), gates.dtype)
    active = numpy.empty((steps, batch, 4 * hidden), gates.dtype)
    product = numpy.empty((batch, width), gates.dtype)
    scratch = numpy.empty((batch, hidden), gates.dtype)
    for step in _steps(steps, reverse):
        given, now, out = gates[step], active[step], output[step]
        numpy.matmul(h, turned, out=product)
        if bias is not None:
            product += bias
        reset_update, new = now[:, : 2 * hidden], now[:, 2 * hidden : 3 * hidden]
        numpy.add(given[:, : 2 * hidden], product[:, : 2 * hidden], out=reset_update)
        _sigmoid(reset_update)
        now[:, 3 * hidden :] = product[:, 2 * hidden :]
        numpy.multiply(now[:, :hidden], product[:, 2 * hidden :], out=new)
        new += given[:, 2 * hidden :]
        numpy.tanh(new, out=new)
        numpy.subtract(h, new, out=scratch)
        scratch *= now[:, hidden : 2 * hidden]
        numpy.add(new, scratch, out=out)
        h = out
    return output, active


def _sigmoid(array: Array) -> None:
    array *= 0.5
    numpy.tanh(array, out=array)
    array *= 0.5
    array += 0.5


@_layer_kernel("_gru_layer_backward")
def gru_layer_backward(
    grad: Array, h: Array, weight: Array, bias: Array | None, output: Array, active: Array,
    reverse: bool,
) -> Any:  # fmt: skip
    hidden = output.shape[-1]
    r, z, n, carried = (active[..., p * hidden : (p + 1) * hidden] for p in range(4))
    before = _previous_states(h, output, reverse)
    # The factors of the gradients of r, z and n are known for all steps before the loop.
    slopes = numpy.empty((*active.shape[:2], 3 * hidden), active.dtype)
    by_reset, by_update, by_new = (slopes[..., p * hidden : (p + 1) * hidden] for p in range(3))
    numpy.multiply(1 - z, 1 - n * n, out=by_new)
    numpy.multiply(before - n, z * (1 - z), out=by_update)
    numpy.multiply(by_new, carried * r * (1 - r), out=by_reset)
    inner = slopes.copy()  # the hidden part of n is multiplied by r
    inner[..., 2 * hidden :] *= r
    kept = numpy.ascontiguousarray(z)
    down = numpy.zeros_like(h)
    for step in _steps(len(active), not reverse):
        down += grad[step]
        for rows in (slopes[step], inner[step]):
            rows.reshape(-1, 3, hidden)[...] *= down[:, None]
        down *= kept[step]
        down += inner[step] @ weight
    return slopes, down, _weight_gradient(inner, before), _flat(inner).sum(0)


@_layer_kernel("_rnn_layer")
def rnn_layer(gates: Array, h: Array, weight: Array, relu: bool, reverse: bool) -> Array:
    turned = numpy.ascontiguousarray(weight.T)
    output = numpy.empty(gates.shape, gates.dtype)
    for step in _steps(len(gates), reverse):
        now = output[step]
        numpy.matmul(h, turned, out=now)
        now += gates[step]
        h = numpy.maximum(now, 0, out=now) if relu else numpy.tanh(now, out=now)
    return output


@_layer_kernel("_rnn_layer_backward")
def rnn_layer_backward(
    grad: Array, h: Array, weight: Array, output: Array, relu: bool, reverse: bool
) -> Any:
    slopes = (output > 0).astype(output.dtype) if relu else 1 - output * output
    down = numpy.zeros_like(h)
    for step in _steps(len(output), not reverse):
        down += grad[step]
        now = slopes[step]
        now *= down
        down = now @ weight
    return slopes, down, _weight_gradient(slopes, _previous_states(h, output, reverse))
