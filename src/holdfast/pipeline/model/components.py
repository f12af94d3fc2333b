"""Load one component with diffusers or transformers: a network, tokenizer or scheduler.

Networks come back on the CPU, in eval mode, without gradients. Errors name the component.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.pipeline.model import single_weights
from holdfast.pipeline.model.library_errors import is_out_of_memory
from holdfast.pipeline.model.quiet import quiet
from holdfast.pipeline.model.sources import Component, Source
from holdfast.residency.files.loading import Loading, build_empty
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    throw_exception_if_processing_interrupted,
)

Progress = Callable[[int, int], None]

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")


def load(source: Source, name: str, dtype: torch.dtype, reading: Progress | None = None) -> Any:
    """Load component `name`. Raises BadInput with the library's reason.

    `reading` is a progress callback (bytes done, bytes total). With it, weights are read straight
    into slabs where the files allow that.
    """
    component = source.components[name]
    # The library may import the model's module here, which takes a while.
    library: Any = run_uninterrupted(lambda: importlib.import_module(component.library))
    cls = run_uninterrupted(lambda: getattr(library, component.class_name, None))
    if not isinstance(cls, type):
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {component.library} has no "
            f"{component.class_name!r}",
            expected=f"a model for {component.library} {library.__version__}",
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
        text = str(exc).strip().splitlines()
        raise BadInput(
            f"cannot load {name!r} of {source.model!r}: {text[0] if text else type(exc).__name__}",
            expected="files that belong together: configuration, weights, vocabulary",
            hint="copy or download the whole model again",
        ) from exc


def _build(
    source: Source, component: Component, cls: Any, dtype: torch.dtype, reading: Progress | None
) -> Any:
    if not component.is_network:
        has = {one.name for one in component.folder.iterdir()}
        if "tokenizer_config.json" in has and has.isdisjoint(_VOCABULARIES):
            # transformers would accept that
            raise ValueError(f"it has none of {', '.join(_VOCABULARIES)}")
        return cls.from_pretrained(component.folder, local_files_only=True)
    if component.name in source.in_single:
        return single_weights.load_network(source, component, cls, dtype)
    if reading is not None:
        model = load_into_slabs(component, cls, dtype, reading)
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


def load_into_slabs(
    component: Component, cls: Any, dtype: torch.dtype, progress: Progress | None = None
) -> Any:
    """Load a network on the CPU, its weights read straight into slabs, without a second copy.

    The weights equal those of from_pretrained bit for bit. Returns None where names or shapes in
    the files differ from the network's: the libraries can map some of them, or say what is wrong.
    `progress` gets bytes read and bytes total; what it raises comes out, and
    InterruptProcessingException.
    """
    model = build_empty(component.library, cls, component.folder, dtype)
    try:
        loading = Loading(model, component.weights, dtype=dtype)
    except (BadInput, Unsupported):
        return None
    loading.run(progress=progress, check=throw_exception_if_processing_interrupted)
    return model
