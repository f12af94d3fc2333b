"""Nodes for models that are larger than the device: stream them, and ask before if they fit."""

from __future__ import annotations

from typing import Any

from holdfast.nodes.residency.fitting import HoldfastWillItFit
from holdfast.nodes.residency.stream_model import HoldfastStreamModel

NODE_CLASS_MAPPINGS: dict[str, type[Any]] = {
    "HoldfastStreamModel": HoldfastStreamModel,
    "HoldfastWillItFit": HoldfastWillItFit,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "HoldfastStreamModel": "Stream Model (Holdfast)",
    "HoldfastWillItFit": "Will It Fit? (Holdfast)",
}

__all__ = [
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "HoldfastStreamModel",
    "HoldfastWillItFit",
]
