"""What the nodes use of ComfyUI. Nothing outside of this folder knows comfy.

Nothing of ComfyUI is imported before somebody needs it; where there is no ComfyUI, what only shows
or asks something does nothing.
"""

from holdfast.nodes.host.model_files import model_roots, rgb_factors
from holdfast.nodes.host.running import (
    Show,
    check,
    has_screen,
    is_stop,
    node_id,
    progress,
    text,
)

__all__ = [
    "Show",
    "check",
    "has_screen",
    "is_stop",
    "model_roots",
    "node_id",
    "progress",
    "rgb_factors",
    "text",
]
