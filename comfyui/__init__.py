"""Holdfast's nodes for ComfyUI: this folder goes into ComfyUI/custom_nodes.

The nodes are in the package `holdfast` (requirements.txt); here is what ComfyUI reads.
Promise: only registers. Nothing is computed, started or written, and without ComfyUI it loads too.
"""

import shlex
import sys
from pathlib import Path

try:
    from holdfast.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, WEB, routes
except ModuleNotFoundError as exc:
    if exc.name != "holdfast":
        raise
    needed = shlex.quote(str(Path(__file__).with_name("requirements.txt")))
    raise ImportError(
        "Holdfast's nodes are in a package that this Python does not have\n"
        f"  expected: the package holdfast for {sys.executable}\n"
        f"  try: {shlex.quote(sys.executable)} -m pip install -r {needed}"
    ) from exc

# The package's own folder: what the browser loads is always as old as the nodes it talks to.
WEB_DIRECTORY = str(WEB)

routes.register()  # without ComfyUI, and the second time, it does nothing

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
