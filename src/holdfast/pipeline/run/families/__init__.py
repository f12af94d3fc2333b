"""Model families: one module each, imported when a model of that family is loaded.

flux            FLUX.1 dev and schnell
sdxl            Stable Diffusion XL
wan             Wan 2.1 and 2.2 video
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.registry import Entry, Registry

if TYPE_CHECKING:
    from holdfast.pipeline.run.stages import Family

_FAMILIES = {
    "flux": "FLUX.1 dev and schnell",
    "sdxl": "Stable Diffusion XL",
    "wan": "Wan 2.1 and 2.2 video",
}
FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        name: Entry(f"holdfast.pipeline.run.families.{name}:FAMILY", what, "run")
        for name, what in _FAMILIES.items()
    },
)

# Pipeline class in model_index.json -> family.
BY_PIPELINE_CLASS = {
    "FluxPipeline": "flux",
    "StableDiffusionXLPipeline": "sdxl",
    "WanPipeline": "wan",
}
