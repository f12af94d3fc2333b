"""Options that `holdfast run` and `holdfast batch` share."""

from __future__ import annotations

import argparse

from holdfast.pipeline.model.placement import PRECISIONS

# The settings of a pipeline that `add_drawing` has options for.
DRAWING = ("negative", "height", "width", "steps", "guidance", "num_frames")


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """Options for what to draw; the defaults are the model's."""
    add = parser.add_argument
    add("--negative", metavar="TEXT", help="what not to draw")
    add("--height", metavar="PIXELS", help="height of the picture (default: the model's)")
    add("--width", metavar="PIXELS", help="width of the picture (default: the model's)")
    add("--steps", metavar="N", help="denoising steps (default: the model's)")
    add("--guidance", metavar="X", help="how closely to follow the prompt (default: the model's)")
    add("--frames", metavar="N", dest="num_frames", help="frames of a video (default: the model's)")
    add("--fps", metavar="N", type=int, default=8, help="frames a second of a video (default 8)")


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Options for where and how a model runs."""
    add = parser.add_argument
    add(
        "--device",
        metavar="DEVICE",
        default="auto",
        help="cpu, cuda, cuda:1, xpu, mps, xla, opencl, holdfast, simulated, or one for each "
        "stage: text=cpu,denoise=cuda (default auto, which prints why)",
    )
    add(
        "--budget",
        metavar="SIZE",
        help="most memory to take on the device, such as 6GB; what does not fit is streamed "
        "(default: what is free)",
    )
    known = ", ".join(PRECISIONS[1:])
    add(
        "--precision",
        metavar="FORMAT",
        default="auto",
        help=f"{known} (default auto, by the device)",
    )
    add("--config", metavar="MODEL", help="folder or hub id that completes a single file")
