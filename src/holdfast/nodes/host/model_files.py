"""ComfyUI's model folders, and its RGB factors of latents.

Imports nothing and reads no file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# First the folder that ComfyUI has for models in diffusers layout.
_KINDS = ("diffusers", "diffusion_models", "checkpoints")
_FORMATS = {"flux": ("Flux",), "wan": ("Wan21", "Wan22")}


def model_roots() -> tuple[Path, ...] | None:
    """The model folders, those of extra_model_paths included; None without ComfyUI."""
    paths: Any = sys.modules.get("folder_paths")
    if paths is None:
        return None
    known = [Path(one) for kind in _KINDS for one in _folders_of(paths, kind)]
    return tuple(dict.fromkeys([*known, Path(paths.models_dir)]))


def rgb_factors(family: str, channels: int) -> tuple[Any, Any] | None:
    """A matrix [channel, colour] and a bias that turn latents into a rough preview.

    None if ComfyUI has none for such latents.
    """
    formats: Any = sys.modules.get("comfy.latent_formats")
    for name in _FORMATS.get(family, ()):
        make = getattr(formats, name, None)
        if make is not None and make.latent_channels == channels:
            found = make()
            bias = found.latent_rgb_factors_bias
            return found.latent_rgb_factors, [0.0] * 3 if bias is None else bias
    return None


def _folders_of(paths: Any, kind: str) -> list[str]:
    return paths.get_folder_paths(kind) if kind in paths.folder_names_and_paths else []
