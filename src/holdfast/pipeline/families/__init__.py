"""Model families: one file each, loaded when a model of that family is."""

from __future__ import annotations

from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.stages import Family

FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        "flux": Entry("holdfast.pipeline.families.flux:FAMILY", "FLUX.1 dev and schnell", "run"),
        "sdxl": Entry("holdfast.pipeline.families.sdxl:FAMILY", "Stable Diffusion XL", "run"),
        "wan": Entry("holdfast.pipeline.families.wan:FAMILY", "Wan 2.1 and 2.2 video", "run"),
    },
)

# The class that a folder's model_index.json names, and the family that draws it.
BY_PIPELINE_CLASS = {
    "FluxPipeline": "flux",
    "StableDiffusionXLPipeline": "sdxl",
    "WanPipeline": "wan",
}
