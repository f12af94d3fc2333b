"""From files to networks, tokenizers and schedulers, one component at a time.

Covers: what diffusers and transformers build, in the wanted precision.
Leaves to others: finding files (sources), networks out of a single file (single_weights), bringing
them to a device (devices).
Promise: networks come ready for inference, on the CPU; a failure names the component.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.pipeline.memory_errors import is_out_of_memory
from holdfast.pipeline.quiet import quiet
from holdfast.pipeline.single_weights import network
from holdfast.pipeline.sources import Component, Source


def load(source: Source, name: str, dtype: torch.dtype) -> Any:
    """Component `name` of a model. Raises BadInput with the library's reason."""
    component = source.components[name]
    cls = getattr(importlib.import_module(component.library), component.class_name, None)
    if cls is None:
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {component.library} has no "
            f"{component.class_name!r}",
            expected=f"a model for {component.library} {_version(component.library)}",
            hint=f"pip install --upgrade {component.library}",
        )
    try:
        with quiet():
            return _ready(_build(source, component, cls, dtype))
    except HoldfastError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as exc:
        if is_out_of_memory(exc):
            raise
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {_first_line(exc)}",
            expected="weights that belong to their configuration",
            hint="copy or download the whole model again",
        ) from exc


def _build(source: Source, component: Component, cls: Any, dtype: torch.dtype) -> Any:
    if not component.is_network:
        return cls.from_pretrained(component.folder, local_files_only=True)
    if component.name in source.in_single:
        return network(source, component, cls, dtype)
    return cls.from_pretrained(
        component.folder, torch_dtype=dtype, local_files_only=True, use_safetensors=True
    )


def _ready(component: Any) -> Any:
    if isinstance(component, torch.nn.Module):
        component.eval().requires_grad_(False)
    return component


def _version(library: str) -> str:
    return str(importlib.import_module(library).__version__)


def _first_line(exc: Exception) -> str:
    text = str(exc).strip().splitlines()
    return text[0] if text else type(exc).__name__
