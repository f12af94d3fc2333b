"""A network of diffusers or transformers without its weights, as its constructor leaves it.

Promise: what only a constructor computes (positions, frequencies) is there; parameters are on meta.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights


def empty(library: str, cls: Any, folder: Path, dtype: torch.dtype) -> Any:
    """The network that a folder's configuration describes, as from_pretrained would begin it."""
    if library == "diffusers":
        with _default(dtype), init_empty_weights():
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
def _default(dtype: torch.dtype) -> Iterator[None]:
    """The format in which diffusers has constructors compute."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
