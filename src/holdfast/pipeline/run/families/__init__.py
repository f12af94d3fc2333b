"""Model families: one module each, imported when a model of that family is loaded.

common          helpers that several families use
flux            FLUX.1 dev and schnell
sdxl            Stable Diffusion XL
wan             Wan 2.1 and 2.2 video
"""

from __future__ import annotations

from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.run.stages import Family

FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        "flux": Entry(
            "holdfast.pipeline.run.families.flux:FAMILY", "FLUX.1 dev and schnell", "run"
        ),
        "sdxl": Entry("holdfast.pipeline.run.families.sdxl:FAMILY", "Stable Diffusion XL", "run"),
        "wan": Entry("holdfast.pipeline.run.families.wan:FAMILY", "Wan 2.1 and 2.2 video", "run"),
    },
)

# Pipeline class in model_index.json -> family.
BY_PIPELINE_CLASS = {
    "FluxPipeline": "flux",
    "StableDiffusionXLPipeline": "sdxl",
    "WanPipeline": "wan",
}
