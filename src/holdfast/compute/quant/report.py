"""What quantization costs, layer by layer: output error and bytes, as text and JSON."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.compute import nn
from holdfast.compute.autograd import tape
from holdfast.compute.quant.flows import fold
from holdfast.compute.quant.layers import QuantizedLayer
from holdfast.compute.tensors.custom_tensor import CustomTensor


@dataclass(frozen=True, slots=True)
class Row:
    """One layer: its output error, and the bytes of its weight."""

    layer: str
    scheme: str
    mean_error: float
    max_error: float
    signal_db: float
    float_bytes: int
    quantized_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """Rows, worst first, and the error of the model's output."""

    rows: tuple[Row, ...]
    output_db: float
    left_float: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{'layer':<24} {'scheme':<24} {'signal':>9} {'max error':>10}  bytes"]
        for row in self.rows:
            sizes = f"{format_bytes(row.float_bytes)} -> {format_bytes(row.quantized_bytes)}"
            lines.append(
                f"{row.layer:<24} {row.scheme:<24} {row.signal_db:>6.1f} dB {row.max_error:>10.3g}"
                f"  {sizes}"
            )
        lines.append(f"output: {self.output_db:.1f} dB above the error")
        if self.left_float:
            lines.append(f"left in float: {', '.join(self.left_float)}")
        return "\n".join(lines)


def compare(model: Any, quantized: Any, data: Any) -> Report:
    """Run one batch `data` through both models, and compare the output of every quantized layer.

    A layer gets the input from its own model, so errors of earlier layers count too.
    """
    for one in (model, quantized):
        if not isinstance(one, nn.Module):
            raise BadInput(f"a {type(one).__name__} cannot be compared", expected="an nn.Module")
    layers = {n: m for n, m in quantized.named_modules() if isinstance(m, QuantizedLayer)}
    if not layers:
        raise BadInput(
            f"{type(quantized).__name__} has no quantized layer",
            expected="what quantize_weights, quantize_dynamic or convert returned",
        )
    if any(layer.how == "static" for layer in layers.values()):
        model = fold(copy.deepcopy(model).eval())  # as it was before it was converted
    ours, whole = _outputs(quantized, list(layers), data)
    theirs, expected = _outputs(model, list(layers), data)
    rows = [
        _row(n, layers[n], theirs[n], ours[n], model.get_submodule(n))
        for n in layers
        if n in ours and n in theirs  # the others were not called
    ]
    others = ((n, m) for n, m in quantized.named_modules() if not isinstance(m, QuantizedLayer))
    rest = [n for n, m in others if any(True for _ in m.parameters(recurse=False))]
    rows.sort(key=lambda row: row.signal_db)
    return Report(tuple(rows), _signal_db(expected, whole), tuple(rest))


def _outputs(model: Any, names: list[str], data: Any) -> tuple[dict[str, Any], Any]:
    found: dict[str, Any] = {}
    handles = []
    for name in names:
        hook = lambda module, given, out, name=name: found.__setitem__(name, out.data.copy())  # noqa: E731
        handles.append(model.get_submodule(name).register_forward_hook(hook))
    modes = {module: module.training for module in model.modules()}
    try:
        with tape.no_grad():
            out = model.eval()(data)
    finally:
        for module, training in modes.items():
            module.training = training
        for handle in handles:
            handle.remove()
    parts = [part.reshape(-1) for part in _arrays(out)]
    if not parts:
        raise BadInput(f"{type(model).__name__} returned no tensor", expected="at least one")
    return found, numpy.concatenate(parts)


def _arrays(out: Any) -> list[Any]:
    """All tensors in what a model returned."""
    if isinstance(out, CustomTensor):
        return [out.data]
    if isinstance(out, Mapping):
        out = list(out.values())
    return [a for one in out for a in _arrays(one)] if isinstance(out, list | tuple) else []


def _row(name: str, layer: Any, expected: Any, found: Any, original: Any) -> Row:
    error = numpy.abs(found - expected)
    kept = layer.weight.nbytes + layer.weight_scale.nbytes
    return Row(
        name, f"{layer.scheme}, {layer.how}", float(error.mean()), float(error.max()),
        _signal_db(expected, found), original.weight.nbytes, kept,
    )  # fmt: skip


def _signal_db(expected: Any, found: Any) -> float:
    noise = float(((found - expected).astype(numpy.float64) ** 2).sum())
    signal = float((expected.astype(numpy.float64) ** 2).sum())
    return math.inf if not noise else 10 * math.log10(max(signal, 1e-300) / noise)


def nbytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
