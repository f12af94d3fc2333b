"""Load one component with diffusers or transformers: a network, tokenizer or scheduler.

Networks come back on the CPU, in eval mode, without gradients. Errors name the component.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.pipeline.devices.memory_errors import is_out_of_memory
from holdfast.pipeline.model import load_into_slabs, single_weights
from holdfast.pipeline.model.load_into_slabs import Progress
from holdfast.pipeline.model.quiet import quiet
from holdfast.pipeline.model.sources import Component, Source
from holdfast.residency.interrupt import InterruptProcessingException

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")


def load(source: Source, name: str, dtype: torch.dtype, reading: Progress | None = None) -> Any:
    """Load component `name`. Raises BadInput with the library's reason.

    `reading` is a progress callback (bytes done, bytes total). With it, weights are read straight
    into slabs where the files allow that.
    """
    component = source.components[name]
    cls = run_uninterrupted(lambda: _class(component))
    if not isinstance(cls, type):
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {component.library} has no "
            f"{component.class_name!r}",
            expected=f"a model for {component.library} {_version(component.library)}",
            hint=f"pip install --upgrade {component.library}",
        )
    try:
        with quiet():
            built = _build(source, component, cls, dtype, reading)
            if component.is_network:
                built.eval().requires_grad_(False)
            return built
    except (HoldfastError, InterruptProcessingException):
        raise
    except Exception as exc:
        # A broken model makes the libraries raise almost anything.
        if is_out_of_memory(exc):
            raise
        if is_interrupt(exc):
            raise KeyboardInterrupt from exc
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {_first_line(exc)}",
            expected="files that belong together: configuration, weights, vocabulary",
            hint="copy or download the whole model again",
        ) from exc


def _class(component: Component) -> Any:
    """The class itself; the library may import the model's module here, which takes a while."""
    return getattr(importlib.import_module(component.library), component.class_name, None)


def _build(
    source: Source, component: Component, cls: Any, dtype: torch.dtype, reading: Progress | None
) -> Any:
    if not component.is_network:
        _require_vocabulary(component)
        return cls.from_pretrained(component.folder, local_files_only=True)
    if component.name in source.in_single:
        return single_weights.load_network(source, component, cls, dtype)
    if reading is not None:
        model = load_into_slabs.load_network(component, cls, dtype, reading)
        if model is not None:
            return model
    model, report = cls.from_pretrained(
        component.folder,
        torch_dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
        variant=component.variant,
        output_loading_info=True,
    )
    # The libraries silently fill missing weights with random values.
    for missing in sorted(report["missing_keys"]):
        raise ValueError(f"its weights have no {missing!r}")
    return model


def _require_vocabulary(component: Component) -> None:
    """Raise ValueError for a tokenizer without a vocabulary, which transformers would accept."""
    is_tokenizer = (component.folder / "tokenizer_config.json").is_file()
    if is_tokenizer and not any((component.folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(f"it has none of {', '.join(_VOCABULARIES)}")


def _version(library: str) -> str:
    return str(importlib.import_module(library).__version__)


def _first_line(exc: Exception) -> str:
    text = str(exc).strip().splitlines()
    return text[0] if text else type(exc).__name__
