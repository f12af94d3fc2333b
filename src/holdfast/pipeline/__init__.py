"""Load a diffusion model and draw with it: text -> denoise -> decode, on any device.

from holdfast.pipeline import Pipeline
pipe = Pipeline.load("tiny-flux")
pipe("a handwritten seven", seed=1).save("seven.png")

model/          from a model name to loaded components: find, download, place, load
devices/        where a stage runs: torch devices, OpenCL, XLA, simulated; budgets
run/            the Pipeline object, its stages and settings, model families, live progress
output/         picture and video files, history of runs, recorded timelines
batch/          many prompts over processes, GPUs and machines (`holdfast batch`)
models          weights of the built-in tiny models (data, no code)
"""

from __future__ import annotations

from holdfast.pipeline.devices.device import DEVICES
from holdfast.pipeline.model.sources import built_in
from holdfast.pipeline.run.families import FAMILIES
from holdfast.pipeline.run.pipeline import Pipeline
from holdfast.pipeline.run.progress import Event
from holdfast.pipeline.run.result import Cost, Residence, Result
from holdfast.pipeline.run.settings import Limits, Settings

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
