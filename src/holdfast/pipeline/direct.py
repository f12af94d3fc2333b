"""Networks whose weights are read straight into memory of our own, with no second copy.

Covers: filling a network that was built without weights.
Leaves to others: building it (residency.files.empty), reading (residency.files.loading), what
cannot be filled this way (components).
Promise: a network is the one that from_pretrained gives, bit for bit, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.sources import Component
from holdfast.residency.files.empty import empty
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
    model = empty(component.library, cls, component.folder, dtype)
    try:
        loading = Loading(model, component.weights, dtype=dtype)
    except (BadInput, Unsupported):
        return None
    loading.run(progress=progress, check=throw_exception_if_processing_interrupted)
    return model
