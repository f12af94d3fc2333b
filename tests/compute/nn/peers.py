"""The same module here and in torch, and numbers that go between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from holdfast.compute import nn
from holdfast.compute.tensors.custom_tensor import CustomTensor


@dataclass(frozen=True)
class Case:
    """A module, and what to call it with: shapes, or arrays."""

    name: str
    args: tuple[Any, ...]
    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    eval: bool = False


def ids(case: Case) -> str:
    """A test's name."""
    words = [str(a) for a in case.args] + [f"{k}={v}" for k, v in case.options.items()]
    return f"{case.name}({', '.join(words)}){'.eval' if case.eval else ''}{list(case.call) or ''}"


def given(case: Case, seed: int = 0) -> list[Any]:
    """The inputs as arrays, float32 unless the case says otherwise."""
    rng = numpy.random.default_rng(seed)
    made = []
    for one in case.inputs:
        if isinstance(one, tuple):
            made.append(rng.standard_normal(one).astype(numpy.float32))
        else:
            made.append(numpy.array(one))
    return made


def pair(case: Case) -> tuple[Any, Any]:
    """torch's module and ours, with torch's weights, the norms' too."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, case.name)(*_for_torch(case.args), **_for_torch(case.options))
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() <= 1:  # ones and zeros would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = getattr(nn, case.name)(*_for_us(case.args), **_for_us(case.options))
    ours.load_state_dict(theirs.state_dict())
    theirs.train(not case.eval)
    ours.train(not case.eval)
    return theirs, ours


@dataclass(frozen=True)
class Build:
    """A module as an argument."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def _for(library: Any, tensor: Any) -> Any:
    def made(value: Any) -> Any:
        if isinstance(value, Build):
            return getattr(library, value.name)(*value.args, **value.options)
        if isinstance(value, numpy.ndarray):
            return tensor(value)
        if isinstance(value, dict):
            return {key: made(one) for key, one in value.items()}
        return tuple(made(one) for one in value) if isinstance(value, tuple) else value

    return made


_for_torch = _for(torch.nn, torch.tensor)
_for_us = _for(nn, lambda array: CustomTensor(array, dtype=array.dtype))


def results(module: Any, arrays: list[Any], call: dict[str, Any], ours: bool) -> Any:
    """Everything a module returns and every gradient, as arrays."""
    floating = [a.dtype.kind == "f" for a in arrays]
    inputs: list[Any] = []
    for array, real in zip(arrays, floating, strict=True):
        if ours:
            inputs.append(CustomTensor(array, dtype=array.dtype, requires_grad=real))
        else:
            inputs.append(torch.tensor(array, requires_grad=bool(real)))
    options = (_for_us if ours else _for_torch)(call)
    outs = flat(module(*inputs, **options))
    weighted = [
        (out * _weights(out.shape, place, ours)).sum()
        for place, out in enumerate(outs)
        if out.requires_grad
    ]
    if weighted:
        sum(weighted[1:], weighted[0]).backward()
    named = {f"input {place}": t.grad for place, t in enumerate(inputs)}
    named |= {name: p.grad for name, p in module.named_parameters()}
    return (
        [_array(out) for out in outs],
        {name: _array(g) for name, g in named.items() if g is not None},
    )


def _weights(shape: Any, place: int, ours: bool) -> Any:
    array = numpy.random.default_rng(100 + place).standard_normal(tuple(shape))
    array = array.astype(numpy.float32)
    return CustomTensor(array) if ours else torch.tensor(array)


def flat(out: Any) -> list[Any]:
    """Tensors in tuples of tuples, as a list."""
    if isinstance(out, tuple | list):
        return [tensor for one in out for tensor in flat(one)]
    return [] if out is None else [out]


def _array(tensor: Any) -> Any:
    return tensor.data if isinstance(tensor, CustomTensor) else tensor.detach().numpy()


def compare(theirs: Any, ours: Any, tolerance: float = 1e-5) -> None:
    """Arrays that agree, in scale with the largest number. Raises AssertionError."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    scale = max(1.0, float(numpy.abs(theirs).max(initial=0)))
    numpy.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)
