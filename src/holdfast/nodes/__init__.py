"""The ComfyUI nodes. Each class can be used from plain Python as well, with no ComfyUI present.

from holdfast.nodes.svm import SVMTopologyAwareAllocNode

pointer, text, statistics = SVMTopologyAwareAllocNode().alloc_memory(size_mb=64)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.nodes import memory, residency, svm, tensor, xla

_HERE = Path(__file__).parent
EXAMPLE_WORKFLOWS = _HERE / "example_workflows"
LOCALES = _HERE / "locales"
WEB = _HERE / "web"
FAMILIES = (svm, tensor, xla, residency, memory)
NODE_CLASS_MAPPINGS: dict[str, type[Any]] = {
    name: node for family in FAMILIES for name, node in family.NODE_CLASS_MAPPINGS.items()
}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {
    name: text for family in FAMILIES for name, text in family.NODE_DISPLAY_NAME_MAPPINGS.items()
}

__all__ = [
    "EXAMPLE_WORKFLOWS",
    "FAMILIES",
    "LOCALES",
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "WEB",
]
