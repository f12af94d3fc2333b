"""The ComfyUI nodes. Each class can be used from plain Python as well, with no ComfyUI present.

from holdfast.nodes.svm import SVMTopologyAwareAllocNode

pointer, text, statistics = SVMTopologyAwareAllocNode().alloc_memory(size_mb=64)
"""

from __future__ import annotations

from pathlib import Path

from holdfast.nodes.svm import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

EXAMPLE_WORKFLOWS = Path(__file__).parent / "example_workflows"

__all__ = ["EXAMPLE_WORKFLOWS", "NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
