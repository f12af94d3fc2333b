"""Recurrent layers taken apart, as engines without kernels compute them, against the kernels."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import Unsupported
from holdfast.compute import nn
from holdfast.compute.autograd import tape
from holdfast.compute.engine import run
from holdfast.compute.engines.numpy import engine
from holdfast.compute.ops import find
from holdfast.compute.tensors.custom_tensor import CustomTensor

_STEPS, _BATCH, _HIDDEN = 4, 3, 5


def _of(*shape: int) -> Any:
    seed = sum(shape)
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


def _state() -> Any:
    return _of(_BATCH, _HIDDEN)


_FORWARD: dict[str, list[Any]] = {
    "_lstm_layer": [
        *(_of(_STEPS, _BATCH, 4 * _HIDDEN), _state(), _state() + 1, _of(4 * _HIDDEN, _HIDDEN)),
    ],
    "_gru_layer": [
        *(_of(_STEPS, _BATCH, 3 * _HIDDEN), _state(), _of(3 * _HIDDEN, _HIDDEN)),
        _of(3 * _HIDDEN),
    ],
    "_rnn_layer": [_of(_STEPS, _BATCH, _HIDDEN), _state(), _of(_HIDDEN, _HIDDEN)],
}


def _apart(name: str, args: list[Any]) -> list[Any]:
    tensors = [CustomTensor(a) if isinstance(a, numpy.ndarray) else a for a in args]
    apart: Any = find(name).decomposition
    with tape.no_grad():
        out = apart(*tensors)
    return [one.data for one in (out if isinstance(out, tuple) else (out,))]


def _whole(name: str, args: list[Any]) -> list[Any]:
    out = run(find(name), engine, args, {})
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("name", "flags"),
    [("_lstm_layer", []), ("_gru_layer", []), ("_rnn_layer", [False]), ("_rnn_layer", [True])],
)
def test_steps_one_by_one_compute_what_the_kernel_does(
    name: str, flags: list[bool], reverse: bool
) -> None:
    given = _FORWARD[name]
    results = _whole(name, [*given, *flags, reverse])
    for one, other in zip(results, _apart(name, [*given, *flags, reverse]), strict=True):
        numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    grads = [_of(*results[0].shape)] * (2 if name == "_lstm_layer" else 1)
    backward = [*grads, *given[1:], *results, *flags, reverse]
    before = [a.copy() for a in backward if isinstance(a, numpy.ndarray)]
    found = _whole(f"{name}_backward", backward)
    for one, other in zip(found, _apart(f"{name}_backward", backward), strict=True):
        numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    kept = [a for a in backward if isinstance(a, numpy.ndarray)]
    assert all(numpy.array_equal(a, b) for a, b in zip(before, kept, strict=True))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layers_gradient_says_that_it_has_none(kind: Any, frozen: bool) -> None:
    x = CustomTensor(numpy.ones((3, 2, 4)), requires_grad=True)
    layer = kind(4, 5).requires_grad_(not frozen)
    (first,) = tape.grad(layer(x)[0].sum(), x, create_graph=True)
    assert first is not None
    with pytest.raises(Unsupported) as caught:
        (first * first).sum().backward()
    assert str(caught.value) == (
        "the gradient of a recurrent layer has no gradient of its own\n"
        "  expected: backward() or grad() without create_graph=True"
    )
