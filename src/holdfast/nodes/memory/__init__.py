"""Nodes about memory: over a run, now, of the machine; and Free Memory.

nodes           the four node classes
sampling        samples RAM, devices and pinned memory in a thread, with peaks by node
recording       records the prompts that contain a Memory Timeline
holding         `memory.debug.holders`, and what ComfyUI's models and results hold
freeing         unloads models and empties caches
words           the texts: a run, a report, what was freed
pictures        draws a run
machine         draws the topology
sheet           drawing with Pillow: shapes, text, themes
page            a run as an HTML page
"""

from __future__ import annotations

from holdfast.nodes.memory.freeing import Freed, free
from holdfast.nodes.memory.nodes import (
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    HoldfastFreeMemory,
    HoldfastMemoryReport,
    HoldfastMemoryTimeline,
    HoldfastTopologyPicture,
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
