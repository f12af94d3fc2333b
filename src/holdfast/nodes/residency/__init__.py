"""Nodes for models that are larger than the device: Stream Model and Will It Fit.

stream_model    the node Stream Model
streaming       one network under management, for ComfyUI's patcher
fitting         the node Will It Fit and its report
choices         the ways to run a model, with predicted times, and the best
"""

from __future__ import annotations

from holdfast.nodes.node import class_mappings
from holdfast.nodes.residency.fitting import HoldfastWillItFit
from holdfast.nodes.residency.stream_model import HoldfastStreamModel

NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = class_mappings(
    HoldfastStreamModel, HoldfastWillItFit
)

__all__ = [
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "HoldfastStreamModel",
    "HoldfastWillItFit",
]
