"""Nodes for FLUX and Wan on XLA: TPUs, GPUs, CPUs."""

from __future__ import annotations

from holdfast.nodes.xla.nodes import (
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    FluxTPUPipeline,
    FluxTPUSampler,
    FluxTPUTextEncoder,
    FluxTPUVAEDecoder,
    TPUNode,
    WanTPUPipeline,
    WanTPUSampler,
    WanTPUTextEncoder,
    WanTPUVAEDecoder,
    loaded,
    unload,
)

__all__ = [
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "FluxTPUPipeline",
    "FluxTPUSampler",
    "FluxTPUTextEncoder",
    "FluxTPUVAEDecoder",
    "TPUNode",
    "WanTPUPipeline",
    "WanTPUSampler",
    "WanTPUTextEncoder",
    "WanTPUVAEDecoder",
    "loaded",
    "unload",
]
