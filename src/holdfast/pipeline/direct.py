"""Networks whose weights are read straight into memory of our own, with no second copy.

Covers: building a network without weights as diffusers and transformers do, filling it.
Leaves to others: reading (residency.loading), what cannot be filled this way (components).
Promise: a network is the one that from_pretrained gives, bit for bit, or None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import init_empty_weights

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.sources import Component
from holdfast.residency.files.loading import Loading
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted

Progress = Callable[[int, int], None]


def network(
    component: Component, cls: Any, dtype: torch.dtype, progress: Progress | None = None
) -> Any:
    """The network of a folder in diffusers layout, on the CPU, its weights in slabs.

    None where names or shapes in its files are not those of the network: the libraries know how
    to map some of them, or say what is wrong. `progress` is called with bytes read and in all.
    Raises whatever that raises, and InterruptProcessingException.
    """
    model = _empty(component, cls, dtype)
    try:
        loading = Loading(model, component.weights, dtype=dtype)
    except (BadInput, Unsupported):
        return None
    loading.run(progress=progress, check=throw_exception_if_processing_interrupted)
    return model


def _empty(component: Component, cls: Any, dtype: torch.dtype) -> Any:
    """Without weights; what only a constructor computes is there."""
    if component.library == "diffusers":
        with _default(dtype), init_empty_weights():
            model = cls.from_config(cls.load_config(component.folder))
        model.register_to_config(_name_or_path=component.folder)
        return model
    config = cls.config_class.from_pretrained(component.folder)
    config.dtype = dtype
    with init_empty_weights():
        model = cls(config)
    model.tie_weights()
    return model


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """The format in which diffusers has constructors compute."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
