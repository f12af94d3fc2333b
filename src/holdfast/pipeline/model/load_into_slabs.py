"""Read the weights of a network straight into our slabs, without a second copy in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.model.sources import Component
from holdfast.residency.files.empty import empty
from holdfast.residency.files.loading import Loading
from holdfast.residency.interrupt import throw_exception_if_processing_interrupted

Progress = Callable[[int, int], None]


def load_network(
    component: Component, cls: Any, dtype: torch.dtype, progress: Progress | None = None
) -> Any:
    """Load the network of a diffusers folder on the CPU, its weights in slabs.

    The weights equal those of from_pretrained bit for bit. Returns None where names or shapes in
    the files differ from the network's: the libraries can map some of them, or say what is wrong.
    `progress` gets bytes read and bytes total; what it raises comes out, and
    InterruptProcessingException.
    """
    model = empty(component.library, cls, component.folder, dtype)
    try:
        loading = Loading(model, component.weights, dtype=dtype)
    except (BadInput, Unsupported):
        return None
    loading.run(progress=progress, check=throw_exception_if_processing_interrupted)
    return model
