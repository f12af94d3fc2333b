"""Options that `holdfast run` and `holdfast batch` share."""

from __future__ import annotations

from holdfast.cli.parsing import option
from holdfast.pipeline.model.placement import PRECISIONS

# The settings of a pipeline that DRAWING_OPTIONS has options for.
DRAWING = ("negative", "height", "width", "steps", "guidance", "num_frames")

# What to draw; the defaults are the model's.
DRAWING_OPTIONS = (
    option("--negative TEXT", "what not to draw"),
    option("--height PIXELS", "height of the picture (default: the model's)"),
    option("--width PIXELS", "width of the picture (default: the model's)"),
    option("--steps N", "denoising steps (default: the model's)"),
    option("--guidance X", "how closely to follow the prompt (default: the model's)"),
    option("--frames N", "frames of a video (default: the model's)", dest="num_frames"),
    option("--fps N", "frames a second of a video (default 8)", 8),
)

# Where and how a model runs.
PLACING_OPTIONS = (
    option(
        "--device DEVICE",
        "cpu, cuda, cuda:1, xpu, mps, xla, opencl, holdfast, simulated, or one for each "
        "stage: text=cpu,denoise=cuda (default auto, which prints why)",
        "auto",
    ),
    option(
        "--budget SIZE",
        "most memory to take on the device, such as 6GB; what does not fit is streamed "
        "(default: what is free)",
    ),
    option(
        "--precision FORMAT", f"{', '.join(PRECISIONS[1:])} (default auto, by the device)", "auto"
    ),
    option("--config MODEL", "folder or hub id that completes a single file"),
)
