"""A diffusers or transformers network without its weights.

Parameters are on the meta device; buffers that the constructor computes (positions, frequencies)
have values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights


def empty(library: str, cls: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Build the network of a folder's configuration, as from_pretrained does before loading."""
    if library == "diffusers":
        with _default_dtype(dtype), init_empty_weights():
            model = cls.from_config(cls.load_config(folder))
        model.register_to_config(_name_or_path=folder)
        return model
    config = cls.config_class.from_pretrained(folder)
    config.dtype = dtype
    with init_empty_weights():
        model = cls(config)
    model.tie_weights()
    return model


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype in the block, as diffusers does around constructors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
