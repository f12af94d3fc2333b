"""From files to networks, tokenizers and schedulers, one component at a time.

Covers: what diffusers and transformers build, in the wanted precision.
Leaves to others: finding files (sources), networks out of a single file (single_weights) or
straight into slabs (direct), bringing them to a device (devices, streaming).
Promise: networks come ready for inference, on the CPU; a failure names the component.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.interrupts import is_interrupt, undisturbed
from holdfast.pipeline import direct, single_weights
from holdfast.pipeline.direct import Progress
from holdfast.pipeline.memory_errors import is_out_of_memory
from holdfast.pipeline.quiet import quiet
from holdfast.pipeline.sources import Component, Source
from holdfast.residency.interrupt import InterruptProcessingException

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")


def load(source: Source, name: str, dtype: torch.dtype, reading: Progress | None = None) -> Any:
    """Component `name` of a model. Raises BadInput with the library's reason.

    With `reading`, which is called with bytes done and in all, weights are read straight into
    slabs where the files allow it.
    """
    component = source.components[name]
    cls = undisturbed(lambda: _class(component))
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
        # Whatever a library stumbles over in a broken model: they have no error for it.
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
    """Also the moment when a library imports its models."""
    return getattr(importlib.import_module(component.library), component.class_name, None)


def _build(
    source: Source, component: Component, cls: Any, dtype: torch.dtype, reading: Progress | None
) -> Any:
    if not component.is_network:
        _require_words(component)
        return cls.from_pretrained(component.folder, local_files_only=True)
    if component.name in source.in_single:
        return single_weights.network(source, component, cls, dtype)
    if reading is not None:
        model = direct.network(component, cls, dtype, reading)
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
    # The libraries fill what a file lacks with random numbers, and go on.
    for missing in sorted(report["missing_keys"]):
        raise ValueError(f"its weights have no {missing!r}")
    return model


def _require_words(component: Component) -> None:
    """A tokenizer without a vocabulary would be made all the same, and read nothing."""
    is_tokenizer = (component.folder / "tokenizer_config.json").is_file()
    if is_tokenizer and not any((component.folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(f"it has none of {', '.join(_VOCABULARIES)}")


def _version(library: str) -> str:
    return str(importlib.import_module(library).__version__)


def _first_line(exc: Exception) -> str:
    text = str(exc).strip().splitlines()
    return text[0] if text else type(exc).__name__
