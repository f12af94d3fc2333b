"""Make a tiny model and its inputs.

The same seed gives the same weights and inputs; torch's global generator is left as it was.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import BadInput, MissingDependency, NotFound
from holdfast.xla.tiny.spec import TensorSpec, Tiny, tiny_models

_SPREAD = 0.05  # standard deviation of what is added to constant weights


@dataclass(frozen=True)
class Made:
    """A float32 module with random weights, in eval mode."""

    name: str
    module: Any
    tiny: Tiny
    seed: int

    def inputs(self) -> dict[str, Any]:
        """New tensors on each call, because some models write into their inputs.

        Sets `return_dict=False` where the method has that argument.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            made = {key: _make_tensors(value) for key, value in self.tiny.inputs.items()}
        if "return_dict" in inspect.signature(self._method).parameters:
            made["return_dict"] = False
        return made

    def __call__(self, **inputs: Any) -> Any:
        return self._method(**inputs)

    @property
    def _method(self) -> Any:
        return getattr(self.module, self.tiny.method)


def make(name: str, seed: int = 0) -> Made:
    """Make the tiny model of a class. Raises NotFound for a class without an entry."""
    tiny = tiny_models().get(name)
    if tiny is None:
        raise NotFound(
            f"there is no tiny model of {name}",
            expected=f"one of {len(tiny_models())} names such as diffusers:FluxTransformer2DModel",
            hint="an entry in holdfast/xla/tiny: its configuration and what to call it with",
        )
    cls = class_of(name)
    with torch.random.fork_rng(devices=[]), _fill_unset_with_nan():
        torch.manual_seed(seed)
        config = getattr(cls, "config_class", None)
        module = cls(**tiny.config) if config is None else cls(config(**tiny.config))
        _fill(module)
    return Made(name, module.eval(), tiny, seed)


def class_of(name: str) -> Any:
    """Import `library:ClassName`. Raises BadInput, NotFound, MissingDependency."""
    library, _, cls = name.partition(":")
    if not library or not cls:
        raise BadInput(
            f"cannot read the class {name!r}",
            expected="library:ClassName, for example diffusers:FluxTransformer2DModel",
        )
    try:
        found = getattr(importlib.import_module(library), cls, None)
    except ImportError as exc:
        extra = "holdfast[run]" if library in ("diffusers", "transformers") else library
        raise MissingDependency(
            f"{name} needs {library}: {exc}", hint=f"pip install '{extra}'"
        ) from exc
    if found is None:
        raise NotFound(
            f"{library} has no class {cls}",
            expected="library:ClassName, for example diffusers:FluxTransformer2DModel",
        )
    return found


def _fill(module: Any) -> None:
    """Leave no weight unset or constant: zeros or ones would hide errors in earlier layers."""
    for weight in module.parameters():
        if not weight.is_floating_point() or not weight.numel():
            continue
        data = weight.data
        if data.isnan().any():
            data.zero_()
        if (data == data.flatten()[0]).all():
            data.add_(torch.randn(data.shape), alpha=_SPREAD)


_MAKERS: dict[str, Callable[[TensorSpec], Any]] = {
    "normal": lambda spec: torch.randn(spec.shape),
    "integers": lambda spec: torch.randint(spec.value, spec.shape),
    "full": lambda spec: torch.full(spec.shape, spec.value),
    "values": lambda spec: torch.tensor(spec.value),
    "generator": lambda spec: torch.Generator().manual_seed(spec.value),
}


def _make_tensors(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return _MAKERS[value.kind](value)
    if isinstance(value, dict):
        return {key: _make_tensors(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_make_tensors(one) for one in value)
    return value


@contextmanager
def _fill_unset_with_nan() -> Iterator[None]:
    """Make `torch.empty` fill with NaN: some classes leave weights uninitialized."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
