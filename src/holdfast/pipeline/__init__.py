"""Text -> denoise -> decode, on whichever device, with progress.

from holdfast.pipeline import Pipeline
pipe = Pipeline.load("tiny-flux")
pipe("a handwritten seven", seed=1).save("seven.png")
"""

from __future__ import annotations

from holdfast.pipeline.devices import DEVICES
from holdfast.pipeline.families import FAMILIES
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.progress import Event
from holdfast.pipeline.result import Cost, Residence, Result
from holdfast.pipeline.settings import Limits, Settings
from holdfast.pipeline.sources import built_in

__all__ = [
    "DEVICES",
    "FAMILIES",
    "Cost",
    "Event",
    "Limits",
    "Pipeline",
    "Residence",
    "Result",
    "Settings",
    "built_in",
]
