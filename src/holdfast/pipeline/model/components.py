"""Load one component with diffusers or transformers: a network, tokenizer or scheduler.

Networks come back on the CPU, in eval mode, without gradients. Errors name the component.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.pipeline.model import single_weights
from holdfast.pipeline.model.library_errors import is_out_of_memory
from holdfast.pipeline.model.quiet import quiet
from holdfast.pipeline.model.sources import Component, Source
from holdfast.residency.files import packed
from holdfast.residency.files.loading import Loading, build_empty
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    throw_exception_if_processing_interrupted,
)
from holdfast.residency.stream.weights import Payloads

Progress = Callable[[int, int], None]

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model", "vocab.txt")


def load(source: Source, name: str, dtype: torch.dtype) -> Any:
    """Load component `name`. Raises BadInput with the library's reason."""
    return _load(source, name, dtype, None, ())[0]


def load_network(
    source: Source,
    name: str,
    dtype: torch.dtype,
    reading: Progress,
    keep_packed: Sequence[str] = (),
) -> tuple[Any, Payloads]:
    """Load a network that will be managed, and the payloads of weights that stay packed.

    Weights are read straight into slabs where the files allow that; those of packed files stay
    packed if that was done by one of the schemes `keep_packed`. `reading` is a progress callback
    (bytes done, bytes total). Raises BadInput with the library's reason.
    """
    return _load(source, name, dtype, reading, keep_packed)


def _load(
    source: Source,
    name: str,
    dtype: torch.dtype,
    reading: Progress | None,
    keep_packed: Sequence[str],
) -> tuple[Any, Payloads]:
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
            if not component.is_network:
                return _build_plain(component, cls), {}
            built, payloads = _build(source, component, cls, dtype, reading, keep_packed)
            return built.eval().requires_grad_(False), payloads
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


def _build_plain(component: Component, cls: Any) -> Any:
    """A tokenizer or a scheduler."""
    has = {one.name for one in component.folder.iterdir()}
    if "tokenizer_config.json" in has and has.isdisjoint(_VOCABULARIES):
        # transformers would accept that
        raise ValueError(f"it has none of {', '.join(_VOCABULARIES)}")
    return cls.from_pretrained(component.folder, local_files_only=True)


def _build(
    source: Source,
    component: Component,
    cls: Any,
    dtype: torch.dtype,
    reading: Progress | None,
    keep_packed: Sequence[str],
) -> tuple[Any, Payloads]:
    if component.name in source.in_single:
        return single_weights.load_network(source, component, cls, dtype), {}
    is_packed = any(map(packed.is_packed, component.weights))
    if reading is not None or is_packed:
        loaded = load_into_slabs(component, cls, dtype, reading, keep_packed=keep_packed)
        if loaded is not None:
            return loaded
        if is_packed:  # the libraries cannot read it
            raise ValueError("its packed weights have other names than the network; unpack them")
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
    return model, {}


def load_into_slabs(
    component: Component,
    cls: Any,
    dtype: torch.dtype,
    progress: Progress | None = None,
    *,
    keep_packed: Sequence[str] = (),
) -> tuple[Any, Payloads] | None:
    """Load a network on the CPU, its weights read straight into slabs, without a second copy.

    The weights equal those of from_pretrained bit for bit. With them come the payloads of weights
    that stay packed, for `residency.manage`. Returns None where names or shapes in
    the files differ from the network's: the libraries can map some of them, or say what is wrong.
    `progress` gets bytes read and bytes total; what it raises comes out, and
    InterruptProcessingException.
    """
    model = build_empty(component.library, cls, component.folder, dtype)
    try:
        loading = Loading(model, component.weights, dtype=dtype, keep_packed=keep_packed)
    except (BadInput, Unsupported):
        return None
    loaded = loading.run(progress=progress, check=throw_exception_if_processing_interrupted)
    return model, loaded.packed
