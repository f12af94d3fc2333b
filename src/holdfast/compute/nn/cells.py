"""One time step of a recurrent layer: RNNCell, LSTMCell, GRUCell."""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.nn.recurrent import is_relu, zeros
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


@layer
class _Cell(Layer):
    """One step of [batch, features] or [features]."""

    parts: ClassVar[int]
    input_size: int
    hidden_size: int
    bias: bool = True

    def build(self, kind: dict[str, Any]) -> None:
        rows = self.parts * self.hidden_size
        self.add_weight("weight_ih", [rows, self.input_size], kind)
        self.add_weight("weight_hh", [rows, self.hidden_size], kind)
        for name in ("bias_ih", "bias_hh"):
            self.add_weight(name, [rows] if self.bias else None, kind)
        init.uniform_all(self, self.hidden_size)

    def _start(self, input: CustomTensor, given: list[Any]) -> tuple[CustomTensor, list[Any]]:
        """The input and states with a batch dimension. Raises BadInput."""
        self.check_kind(input, self.weight_ih)
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise self.refuse(
                input,
                f"it is not {self.input_size} features of each",
                f"[batch, {self.input_size}] or [{self.input_size}]",
            )
        wanted = [*input.shape[:-1], self.hidden_size]
        states = [zeros(wanted, input) if g is None else g for g in given]
        for state in states:
            if list(state.shape) != wanted:
                raise self.refuse(
                    input, f"the first state is {describe(state)}", f"a state of {wanted}"
                )
        if input.ndim == 2:
            return input, states
        return F.unsqueeze(input, 0), [F.unsqueeze(s, 0) for s in states]

    def _sums(self, input: CustomTensor, both: bool) -> CustomTensor:
        """The input's part of the gates, with both biases or only its own."""
        bias = self.bias_ih
        if both and bias is not None:
            bias = F.add(bias, self.bias_hh)
        return F.unsqueeze(F.linear(input, self.weight_ih, bias), 0)

    def _through(self, input: CustomTensor, given: list[Any]) -> list[CustomTensor]:
        batched, states = self._start(input, given)
        found = [F.select(one, 0, 0) for one in self._step(batched, states)]
        return found if input.ndim == 2 else [F.squeeze(one, 0) for one in found]

    def forward(self, input: CustomTensor, hx: Any = None) -> Any:
        return self._through(input, [hx])[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


@layer
class _GatedCell(_Cell):
    device: Any = None
    dtype: Any = None


class LSTMCell(_GatedCell, parts=4):
    """One step of an LSTM: (h, c) from the input and (h, c)."""

    def _step(self, input: CustomTensor, states: list[Any]) -> list[CustomTensor]:
        sums = self._sums(input, True)
        return list(F._lstm_layer(sums, *states, self.weight_hh, False)[:2])

    def forward(self, input: CustomTensor, hx: Any = None) -> Any:
        return tuple(self._through(input, [None, None] if hx is None else list(hx)))


class GRUCell(_GatedCell, parts=3):
    """One step of a GRU: h from the input and h."""

    def _step(self, input: CustomTensor, states: list[Any]) -> list[CustomTensor]:
        sums = self._sums(input, False)
        return [F._gru_layer(sums, states[0], self.weight_hh, self.bias_hh, False)[0]]


@layer
class RNNCell(_Cell, parts=1):
    """One step of an RNN: h from the input and h."""

    nonlinearity: str = "tanh"
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        self._relu = is_relu("RNNCell", self.nonlinearity)
        super().build(kind)

    def _step(self, input: CustomTensor, states: list[Any]) -> list[CustomTensor]:
        sums = self._sums(input, True)
        return [F._rnn_layer(sums, states[0], self.weight_hh, self._relu, False)]

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text + (f", nonlinearity={self.nonlinearity}" if self._relu else "")
