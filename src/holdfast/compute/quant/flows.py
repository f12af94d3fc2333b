"""From a float model to a quantized one: weights only, dynamic, static, quantization-aware
training.

Every function returns a copy; the given model is not changed.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import nn
from holdfast.compute.nn.module import fill
from holdfast.compute.quant import observers
from holdfast.compute.quant.layers import QuantizedConv2d, QuantizedLinear, sides
from holdfast.compute.quant.scheme import (
    INT8_ACTIVATIONS,
    INT8_CHANNELS,
    Scheme,
    parameters,
    quantize,
)
from holdfast.compute.quant.training import Learning
from holdfast.compute.tensors.custom_tensor import CustomTensor


def quantize_weights(model: Any, scheme: Scheme = INT8_CHANNELS) -> Any:
    """A copy whose Linear and Conv2d store integer weights and compute in float."""
    _refuse_no_scheme(scheme)
    return _replace_layers(model, lambda name, layer: _convert_layer(layer, scheme, "weights"))


def quantize_dynamic(model: Any, scheme: Scheme = INT8_CHANNELS) -> Any:
    """A copy that multiplies integers; each row of an input is scaled by its own range."""
    _refuse_groups(scheme)
    return _replace_layers(model, lambda name, layer: _convert_layer(layer, scheme, "dynamic"))


class Observed(nn.Module):
    """A layer and the observer of its inputs."""

    inner: Any

    def __init__(self, inner: Any, observer: Any) -> None:
        super().__init__()
        self.inner, self.observer = inner, observer

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.observer(input.detach())
        return self.inner(input)


def prepare(model: Any, observer: str = "histogram") -> Any:
    """A copy to run typical data through before `convert`; batch normalization is folded in."""
    make = lambda name, layer: Observed(layer, observers.make(observer, name))  # noqa: E731
    return _replace_layers(_fold_copy(model), make, inplace=True)


def _fold_copy(model: Any) -> Any:
    _refuse_other(model)
    return fold(copy.deepcopy(model).eval())


def prepare_qat(
    model: Any, weight: Scheme = INT8_CHANNELS, activation: Scheme = INT8_ACTIVATIONS
) -> Any:
    """A copy to train further: it rounds as the quantized model will."""
    _refuse_other(model)
    _refuse_groups(weight)
    _refuse_spread(activation)
    make = lambda name, layer: Learning(layer, name, weight, activation)  # noqa: E731
    return _replace_layers(_fold_copy(model), make, inplace=True).train(model.training)


def convert(
    prepared: Any, weight: Scheme = INT8_CHANNELS, activation: Scheme = INT8_ACTIVATIONS
) -> Any:
    """A quantized copy of what `prepare` or `prepare_qat` returned, with fixed ranges.

    After `prepare_qat` the schemes are those of the training. Raises Misuse for a layer that has
    seen no data.
    """
    _refuse_groups(weight)
    _refuse_spread(activation)

    def made(name: str, layer: Any) -> Any:
        if isinstance(layer, Learning):
            ranges = layer.of_input.parameters()
            chosen = layer.of_input.scheme, *ranges
            return _convert_layer(layer.inner, layer.of_weight.scheme, "static", chosen)
        low, high = layer.observer.range()
        ranges = parameters(activation, low, high, f"layer {name!r}")
        return _convert_layer(layer.inner, weight, "static", (activation, *ranges))

    return _replace_layers(prepared, made, (Observed, Learning)).eval()


def _convert_layer(layer: Any, scheme: Scheme, how: str, activation: Any = None) -> Any:
    made = quantize(layer.weight.detach(), scheme)
    if isinstance(layer, nn.Linear):
        return QuantizedLinear(made, layer.bias, how, activation)
    return QuantizedConv2d(made, layer, how, activation)


def _refuse_other(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"a {type(model).__name__} cannot be quantized", expected="an nn.Module")


def _refuse_no_scheme(scheme: Any) -> None:
    if not isinstance(scheme, Scheme):
        raise BadInput(
            f"{scheme!r} is no scheme", expected="a quant.Scheme", hint="quant.Scheme(bits=8)"
        )


def _refuse_spread(scheme: Scheme) -> None:
    _refuse_no_scheme(scheme)
    if scheme.group or scheme.axis is not None:
        raise BadInput(
            f"{scheme} cannot be used for the input of a layer",
            expected="a scheme with one scale for the tensor",
            hint=f"Scheme(bits={scheme.bits}, symmetric={scheme.symmetric})",
        )


def _refuse_groups(scheme: Scheme) -> None:
    _refuse_no_scheme(scheme)
    if scheme.group:
        raise BadInput(
            f"{scheme} is for weights alone",
            expected="a scheme per tensor or per output channel (axis=0)",
            hint="quantize_weights(model, scheme)",
        )
    if scheme.axis not in (None, 0) or not scheme.symmetric:
        raise BadInput(
            f"{scheme} cannot be used for a weight in an integer product",
            expected="a symmetric scheme, per tensor or per output channel (axis=0)",
        )


_LINEAR, _CONV = (nn.Linear, nn.CustomLinear), (nn.Conv2d, nn.CustomConv2d)


def _is_quantizable(layer: Any) -> bool:
    """Only the classes themselves: a subclass may compute something else."""
    if type(layer) in _LINEAR:
        return True
    return type(layer) in _CONV and layer.padding_mode == "zeros" and sides(layer) is not None


def _replace_layers(
    model: Any,
    make: Callable[[str, Any], Any],
    kinds: tuple[type, ...] | None = None,
    inplace: bool = False,
) -> Any:
    """A copy of the model with its quantizable layers replaced."""
    _refuse_other(model)
    root = nn.Sequential(model if inplace else copy.deepcopy(model))
    made: dict[int, tuple[Any, Any]] = {}  # a shared layer stays shared
    for path, parent in list(root.named_modules()):
        if isinstance(parent, Observed | Learning):
            continue
        for name, child in list(parent._modules.items()):
            if isinstance(child, kinds) if kinds else _is_quantizable(child):
                full = f"{path}.{name}".lstrip(".").removeprefix("0").lstrip(".")
                if id(child) not in made:
                    made[id(child)] = child, make(full, child)
                parent.add_module(name, made[id(child)][1])
    if not made:
        wanted_kinds = "a layer that was prepared" if kinds else "a Linear or a Conv2d"
        raise BadInput(
            f"there is nothing to quantize in {type(model).__name__}",
            expected=f"{wanted_kinds} inside",
            hint="quant.prepare(model) first" if kinds else None,
        )
    return root[0]


def fold(model: Any) -> Any:
    """Fold batch normalization into the convolution before it, in place; returns the model.

    Only for neighbours inside a Sequential in evaluation mode, where the order is certain, and
    only if nothing else uses the convolution's weights.
    """
    # How many names each parameter has, by its id.
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for parent in list(model.modules()):
        if type(parent).forward is not nn.Sequential.forward:
            continue
        # Not named_children(), which lists a shared module once.
        for (_, conv), (name, norm) in itertools.pairwise(list(parent._modules.items())):
            if type(conv) not in _CONV or type(norm) is not nn.BatchNorm2d:
                continue
            alone = all(uses[id(part)] == 1 for part in conv.parameters())
            if alone and norm.running_mean is not None and not conv._after:
                _fold(conv, norm)
                parent.add_module(name, nn.Identity())
    return model


def _fold(conv: Any, norm: Any) -> None:
    mean, var = (part.data.astype(numpy.float64) for part in (norm.running_mean, norm.running_var))
    gain = numpy.ones_like(mean) if norm.weight is None else norm.weight.data
    shift = numpy.zeros_like(mean) if norm.bias is None else norm.bias.data
    factor = gain / numpy.sqrt(var + norm.eps)
    before = numpy.zeros_like(mean) if conv.bias is None else conv.bias.data
    fill(conv.weight, conv.weight.data * factor.reshape(-1, 1, 1, 1))
    bias = (before - mean) * factor + shift
    if conv.bias is None:
        made = CustomTensor(bias, conv.weight.device, conv.weight.dtype)
        conv.register_parameter("bias", nn.Parameter(made))
    else:
        fill(conv.bias, bias)
