"""Nodes for where memory goes: over time, now, by machine; and getting it back."""

from __future__ import annotations

from holdfast.nodes.memory.nodes import (
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    Freed,
    HoldfastFreeMemory,
    HoldfastMemoryReport,
    HoldfastMemoryTimeline,
    HoldfastTopologyPicture,
    free,
    report,
    watch_prompts,
)

__all__ = [
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "Freed",
    "HoldfastFreeMemory",
    "HoldfastMemoryReport",
    "HoldfastMemoryTimeline",
    "HoldfastTopologyPicture",
    "free",
    "report",
    "watch_prompts",
]
