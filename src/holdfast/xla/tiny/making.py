"""Making a tiny model, and what it is called with.

Covers: finding the class, random weights that hide nothing, inputs.
Promise: the same seed gives the same weights and inputs, and torch's own generator is left alone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.base.errors import BadInput, MissingDependency, NotFound
from holdfast.xla.tiny.spec import Draws, Full, Random, Tiny, Values, Whole

_FILES = (
    *("audio", "autoencoders", "encoders", "images_from_hunyuan", "images_to_hidream", "unets"),
    *("videos_from_kandinsky6", "videos_to_kandinsky5"),
)
_SPREAD = 0.05  # of what is added to weights that are all alike


@dataclass(frozen=True)
class Made:
    """A module with random weights, in float32, ready to be evaluated."""

    name: str
    module: Any
    tiny: Tiny
    seed: int

    def inputs(self) -> dict[str, Any]:
        """New tensors each time, because some models write into what they are given.

        Where it can be said, the answer is asked for as a tuple.
        """
        with _seeded(self.seed):
            made = {key: _tensors(value) for key, value in self.tiny.inputs.items()}
        if "return_dict" in inspect.signature(self._method).parameters:
            made["return_dict"] = False
        return made

    def __call__(self, **inputs: Any) -> Any:
        return self._method(**inputs)

    @property
    def _method(self) -> Any:
        return getattr(self.module, self.tiny.method)


@functools.cache
def tiny_models() -> Mapping[str, Tiny]:
    """All of them, by `library:ClassName`."""
    found: dict[str, Tiny] = {}
    for name in _FILES:
        found |= importlib.import_module(f"holdfast.xla.tiny.{name}").TINY
    return found


def make(name: str, seed: int = 0) -> Made:
    """A tiny model of a class. Raises NotFound for a class that has no entry here."""
    tiny = tiny_models().get(name)
    if tiny is None:
        raise NotFound(
            f"there is no tiny model of {name}",
            expected=f"one of {len(tiny_models())} names such as diffusers:FluxTransformer2DModel",
            hint="an entry in holdfast/xla/tiny: its configuration and what to call it with",
        )
    cls = class_of(name)
    with _seeded(seed), _unset_is_nan():
        config = getattr(cls, "config_class", None)
        module = cls(**tiny.config) if config is None else cls(config(**tiny.config))
        _fill(module)
    return Made(name, module.eval(), tiny, seed)


def class_of(name: str) -> Any:
    """The class behind `library:ClassName`. Raises BadInput, NotFound, MissingDependency."""
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
    """Leave no weight unset, and none all zeros or ones: they would hide what is before them."""
    for weight in module.parameters():
        if not weight.is_floating_point() or not weight.numel():
            continue
        data = weight.data
        if data.isnan().any():
            data.zero_()
        if (data == data.flatten()[0]).all():
            data.add_(torch.randn(data.shape), alpha=_SPREAD)


def _tensors(value: Any) -> Any:
    match value:
        case Random(shape):
            return torch.randn(shape)
        case Whole(shape, below):
            return torch.randint(below, shape)
        case Full(shape, constant):
            return torch.full(shape, constant)
        case Values(numbers):
            return torch.tensor(numbers)
        case Draws(seed):
            return torch.Generator().manual_seed(seed)
        case dict():
            return {key: _tensors(one) for key, one in value.items()}
        case list() | tuple():
            return type(value)(_tensors(one) for one in value)
    return value


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _unset_is_nan() -> Iterator[None]:
    """Some classes leave weights as `torch.empty` made them; torch can show which."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
