"""Nodes for FLUX and Wan through XLA, on TPUs, GPUs and CPUs.

nodes           the eight node classes
models          finds, loads and keeps the one model that the nodes share
sockets         CONDITIONING, LATENT and IMAGE to and from the stages of a pipeline
steps           progress and previews while a sampler runs
"""

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
    list_loaded,
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
    "list_loaded",
    "unload",
]
