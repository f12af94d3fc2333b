"""RNN, LSTM, GRU.

The input's part of the gates for all steps is one matrix product; all steps of a layer and
direction are one op (`ops.layers.recurrent`). Single steps are in `cells`.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

from holdfast.base.errors import BadInput
from holdfast.compute import functional as F
from holdfast.compute.nn import init
from holdfast.compute.nn.dropout import drop_elements
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["GRU", "LSTM", "RNN"]


def zeros(shape: list[int], like: CustomTensor) -> CustomTensor:
    """An initial state."""
    return init.zeros_(init.empty(*shape, device=like.device, dtype=like.dtype))


class _Recurrent(Layer):
    """Layers over [steps, batch, features], or [batch, steps, features] with `batch_first`."""

    parts: ClassVar[int]  # gates
    proj_size: int = 0

    def build(self, kind: dict[str, Any]) -> None:
        self.dropout = float(self.dropout)
        self._check_arguments()
        for number in range(self.num_layers):
            for suffix in self._suffixes(number):
                size = self.input_size if not number else self._out * self._ways
                self._add(suffix, size, kind)
        self.reset_parameters()

    def _check_arguments(self) -> None:
        name = type(self).__name__
        if not 0 <= self.dropout <= 1:
            raise BadInput(
                f"{self.dropout} is no probability for {name}", expected="0 <= dropout <= 1"
            )
        sizes: list[Any] = [self.input_size, self.hidden_size, self.num_layers]
        if not all(isinstance(size, Integral) and int(size) >= 1 for size in sizes):
            raise BadInput(
                f"{name} cannot have input_size={self.input_size}, hidden_size="
                f"{self.hidden_size}, num_layers={self.num_layers}",
                expected="at least 1 of each",
            )
        if self.proj_size and (not isinstance(self, LSTM) or self.proj_size >= self.hidden_size):
            raise BadInput(
                f"{name} cannot have proj_size={self.proj_size} with hidden_size="
                f"{self.hidden_size}",
                expected="an LSTM, with proj_size below hidden_size",
            )

    @property
    def _ways(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _out(self) -> int:
        return self.proj_size or self.hidden_size

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._ways]

    def _add(self, suffix: str, size: int, kind: Any) -> None:
        rows = self.parts * self.hidden_size
        shapes = {"weight_ih": [rows, size], "weight_hh": [rows, self._out]}
        if self.bias:
            shapes |= {"bias_ih": [rows], "bias_hh": [rows]}
        if self.proj_size:
            shapes["weight_hr"] = [self.proj_size, self.hidden_size]
        for name, shape in shapes.items():
            self.add_weight(name + suffix, shape, kind)

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.uniform_all(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Does nothing: parameters need not be contiguous."""

    # ---- the input and the state

    def _check_input(self, input: CustomTensor) -> bool:
        """Whether the input has a batch dimension. Raises BadInput."""
        self.check_kind(input, self.weight_ih_l0)
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            order = "batch, steps" if self.batch_first else "steps, batch"
            raise self.refuse(
                input,
                f"it has {input.ndim} dimensions"
                if input.ndim not in (2, 3)
                else f"its last size is {input.shape[-1]}, not {self.input_size}",
                f"[{order}, {self.input_size}] or [steps, {self.input_size}]",
            )
        if not input.shape[1 if self.batch_first and input.ndim == 3 else 0]:
            raise self.refuse(input, "there are no steps", "at least one step")
        return input.ndim == 3

    def _state(
        self, given: CustomTensor | None, input: CustomTensor, batched: bool, width: int
    ) -> CustomTensor:
        """The initial state [layers * directions, batch, width]: the given one, or zeros."""
        batch = input.shape[0 if self.batch_first else 1] if batched else 1
        shape = [self.num_layers * self._ways, batch, width]
        if given is None:
            return zeros(shape, input)
        wanted = shape if batched else [shape[0], width]
        if list(given.shape) != wanted:
            raise self.refuse(
                input, f"the first state is {describe(given)}", f"a state of {wanted}"
            )
        return given if batched else F.unsqueeze(given, 1)

    def _run(self, input: CustomTensor, states: list[CustomTensor]) -> tuple[Any, list[Any]]:
        """Run all layers: the last layer's output, and the final states."""
        first = 1 if self.batch_first else 0  # where the steps are
        flowing, last = input, []
        for number in range(self.num_layers):
            if number and self.training:
                flowing = drop_elements(flowing, self.dropout)
            outs = []
            for way, suffix in enumerate(self._suffixes(number)):
                own = [F.select(s, 0, number * self._ways + way) for s in states]
                gates = self._gates(flowing, suffix)
                gates = F.transpose(gates, 0, 1) if first else gates
                out, ends = self._layer(gates, own, suffix, way == 1)
                outs.append(F.transpose(out, 0, 1) if first else out)
                last.append(ends)
            flowing = outs[0] if len(outs) == 1 else F.cat(outs, -1)
        return flowing, [F.stack(list(ends), 0) for ends in zip(*last, strict=True)]

    def _bias(self, name: str, suffix: str) -> Any:
        return getattr(self, f"bias_{name}{suffix}") if self.bias else None

    def _gates(self, input: CustomTensor, suffix: str) -> CustomTensor:
        """The input's part of the gates for all steps, including both biases."""
        bias = None
        if self.bias:
            bias = F.add(self._bias("ih", suffix), self._bias("hh", suffix))
        return F.linear(input, getattr(self, f"weight_ih{suffix}"), bias)

    def _through(self, input: CustomTensor, given: list[Any], widths: list[int]) -> Any:
        batched = self._check_input(input)
        states = [self._state(g, input, batched, w) for g, w in zip(given, widths, strict=True)]
        steps = 0 if self.batch_first else 1  # where the batch is
        out, last = self._run(input if batched else F.unsqueeze(input, steps), states)
        if not batched:
            out, last = F.squeeze(out, steps), [F.squeeze(one, 1) for one in last]
        return out, last

    def forward(
        self, input: CustomTensor, hx: CustomTensor | None = None
    ) -> tuple[CustomTensor, Any]:
        out, last = self._through(input, [hx], [self.hidden_size])
        return out, last[0]

    def extra_repr(self) -> str:
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False}
        usual |= {"dropout": 0.0, "bidirectional": False}
        given = {name: getattr(self, name) for name in usual}
        words = [f"{name}={value}" for name, value in given.items() if value != usual[name]]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *words])


def _end(out: CustomTensor, reverse: bool) -> CustomTensor:
    return F.select(out, 0, 0 if reverse else -1)


@layer
class _Gated(_Recurrent):
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    proj_size: int = 0
    device: Any = None
    dtype: Any = None


class LSTM(_Gated, parts=4):
    """Long short-term memory. Takes and returns the states (h, c) beside the output."""

    def _layer(self, gates: Any, own: list[Any], suffix: str, reverse: bool) -> tuple[Any, Any]:
        weight = getattr(self, f"weight_hh{suffix}")
        if self.proj_size:
            return self._project(gates, own, suffix, reverse)
        out, cells, _ = F._lstm_layer(gates, own[0], own[1], weight, reverse)
        return out, (_end(out, reverse), _end(cells, reverse))

    def _project(self, gates: Any, own: list[Any], suffix: str, reverse: bool) -> tuple[Any, Any]:
        """Step by step, with the projection inside the loop."""
        weight = getattr(self, f"weight_hh{suffix}")
        down = getattr(self, f"weight_hr{suffix}")
        h, c = own
        outs: list[Any] = []
        for step in range(gates.shape[0])[:: -1 if reverse else 1]:
            part = F.add(F.select(gates, 0, step), F.linear(h, weight))
            raw, c = lstm_step(part, c)
            h = F.linear(raw, down)
            outs.append(h)
        return F.stack(outs[::-1] if reverse else outs, 0), (h, c)

    def forward(self, input: CustomTensor, hx: Any = None) -> tuple[CustomTensor, Any]:
        given = [None, None] if hx is None else list(hx)
        out, last = self._through(input, given, [self._out, self.hidden_size])
        return out, tuple(last)


def lstm_step(gates: CustomTensor, c: CustomTensor) -> tuple[CustomTensor, CustomTensor]:
    """h and c after one step, from the sums of the gates."""
    i, f, g, o = F.split(gates, gates.shape[-1] // 4, -1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


class GRU(_Gated, parts=3):
    """Gated recurrent unit. Returns the output and h."""

    def _gates(self, input: CustomTensor, suffix: str) -> CustomTensor:
        bias = self._bias("ih", suffix)  # the other one is inside of the reset gate
        return F.linear(input, getattr(self, f"weight_ih{suffix}"), bias)

    def _layer(self, gates: Any, own: list[Any], suffix: str, reverse: bool) -> tuple[Any, Any]:
        weight, bias = getattr(self, f"weight_hh{suffix}"), self._bias("hh", suffix)
        out, _ = F._gru_layer(gates, own[0], weight, bias, reverse)
        return out, (_end(out, reverse),)


@layer
class RNN(_Recurrent, parts=1):
    """Elman RNN with tanh or relu. Returns the output and h."""

    input_size: int
    hidden_size: int
    num_layers: int = 1
    nonlinearity: str = "tanh"
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        self._relu = is_relu("RNN", self.nonlinearity)
        super().build(kind)

    def _layer(self, gates: Any, own: list[Any], suffix: str, reverse: bool) -> tuple[Any, Any]:
        weight = getattr(self, f"weight_hh{suffix}")
        out = F._rnn_layer(gates, own[0], weight, self._relu, reverse)
        return out, (_end(out, reverse),)


def is_relu(name: str, nonlinearity: str) -> bool:
    """Whether the nonlinearity is relu rather than tanh. Raises BadInput for others."""
    if nonlinearity not in ("tanh", "relu"):
        raise BadInput(f"{name} has no nonlinearity {nonlinearity!r}", expected="one of tanh, relu")
    return nonlinearity == "relu"
