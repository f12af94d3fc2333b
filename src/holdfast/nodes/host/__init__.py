"""The only code that calls ComfyUI inside its process.

ComfyUI is imported on first use. Without ComfyUI, functions that only show or query do nothing.

    running         the running node: progress bar, preview, text, interrupt
    following       which prompt and which node run, and its progress
    models          loaded models, kept results, files in the temp folder
    model_files     ComfyUI's model folders; RGB factors of latents
    fitting         what ComfyUI would do with a model: memory, estimates, the network's inputs
    patcher         a ModelPatcher that streams weights
    server          HTTP routes and queue of ComfyUI's server
    sockets         the socket type that matches any other
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
