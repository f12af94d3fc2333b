"""The ComfyUI nodes. Each class works from plain Python too, without ComfyUI.

    from holdfast.nodes.svm import SVMTopologyAwareAllocNode

    pointer, text, statistics = SVMTopologyAwareAllocNode().alloc_memory(size_mb=64)

    node            base class of the nodes
    svm             nodes for shared virtual memory
    tensor          nodes that compute on tensors: linear, conv, activation, loss, ops
    tensor_inputs   reads and checks the inputs of those
    xla/            nodes for FLUX and Wan through XLA
    residency/      Stream Model and Will It Fit
    memory/         Memory Timeline, Memory Report, Topology Picture, Free Memory
    host/           the only code that calls ComfyUI inside its process
    refusing        rejects values in place of links, and results larger than memory
    live            memory now, for the panel in the sidebar
    routes          HTTP routes for that panel
    installing      installs the pack into a ComfyUI folder, or removes it
    checking        asks a running ComfyUI over HTTP whether the pack is complete

Data: `web/` (JavaScript, help pages), `locales/` (translations), `example_workflows/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.nodes import memory, residency, svm, tensor, xla
from holdfast.nodes.node import LOCALES

_HERE = Path(__file__).parent
EXAMPLE_WORKFLOWS = _HERE / "example_workflows"
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
