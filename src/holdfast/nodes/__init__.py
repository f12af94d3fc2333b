"""The ComfyUI nodes. Each class can be used from plain Python as well, with no ComfyUI present.

from holdfast.nodes.svm import SVMTopologyAwareAllocNode

pointer, text, statistics = SVMTopologyAwareAllocNode().alloc_memory(size_mb=64)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.nodes import svm, tensor

EXAMPLE_WORKFLOWS = Path(__file__).parent / "example_workflows"
NODE_CLASS_MAPPINGS: dict[str, type[Any]] = {
    **svm.NODE_CLASS_MAPPINGS,
    **tensor.NODE_CLASS_MAPPINGS,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    **svm.NODE_DISPLAY_NAME_MAPPINGS,
    **tensor.NODE_DISPLAY_NAME_MAPPINGS,
}

__all__ = ["EXAMPLE_WORKFLOWS", "NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
