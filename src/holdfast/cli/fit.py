"""Predict whether a model runs under a budget, how fast, and what would help, before it is loaded.

MODEL is a built-in model (tiny-flux, tiny-sdxl, tiny-wan), a folder in diffusers layout, the folder
of one network, a single safetensors file, or a hub id, of which only configurations are downloaded.
Headers are read and half a megabyte of weights at most. The first question about a model times its
layers on the device, with random weights; later ones take what was measured then.

examples:
holdfast fit ~/FLUX.1-dev --budget 8GB
holdfast fit ~/Wan2.1-T2V-14B --budget 12GB --size 832x480 --frames 81
holdfast fit flux1-dev.safetensors --budget 6GB --precision fp8
holdfast fit black-forest-labs/FLUX.1-dev --budget 8GB --device cuda:1 --json
holdfast fit tiny-flux --device simulated --budget 12MB
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput
from holdfast.base.registry import Entry, Registry
from holdfast.cli.files import parse_integer
from holdfast.cli.parsing import option
from holdfast.cli.progress import show_status
from holdfast.cli.tables import as_json
from holdfast.pipeline.model import sources

if TYPE_CHECKING:
    from holdfast.residency.predict.shapes import Size

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# Loaded when a model is examined, not for the help; an error names the missing extra.
_PARTS: Registry[Any] = Registry(
    "command",
    {
        "fit": Entry("holdfast.residency.predict.fit:fit", extra="run"),
        "shapes": Entry("holdfast.residency.predict.shapes", extra="run"),
        "hub": Entry("holdfast.pipeline.model.hub", extra="run"),
        "quiet": Entry("holdfast.pipeline.model.quiet:quiet", extra="run"),
    },
)


OPTIONS = (
    option("model MODEL", "the model: see above", nargs="?"),
    option("--budget SIZE", "memory to take at most, such as 8GB (default: what is free)"),
    option("--size WxH", "of the picture, such as 1024x1024 (default: the model's)"),
    option("--frames N", "frames of a video (default: the model's)"),
    option(
        "--device DEVICE", "cpu, cuda, cuda:1, xpu, mps, holdfast, simulated (default auto)", "auto"
    ),
    option("--precision FORMAT", "fp32, bf16, fp16, fp8 (default auto, by the device)", "auto"),
    option("--no-pack", "weights cross the link as they are"),
    option("--config DIR", "the folder with the configuration of a single file"),
    option("--json", "print JSON: all numbers, the networks one by one"),
)


def run(args: argparse.Namespace) -> int:
    """Print the prediction; status 1 if the model does not fit."""
    if args.model is None:
        raise BadInput(
            "no model was named",
            expected="a folder, a .safetensors file, a hub id, or one of "
            + ", ".join(sources.built_in()),
            hint="holdfast fit tiny-flux",
        )
    fit = _PARTS["fit"]
    path = _path(args.model)
    with show_status("looking at the model") as show, _PARTS["quiet"]():
        answer = fit(
            path,
            args.device,
            args.budget,
            _size(args, path),
            precision=args.precision,
            pack=False if args.no_pack else "auto",
            config=None if args.config is None else _path(args.config),
            progress=show,
        )
    if answer.parts:
        answer = dataclasses.replace(answer, model=args.model)
    print(as_json(answer.to_dict()) if args.json else str(answer))
    return 0 if answer.fits else 1


def _path(model: str) -> Path:
    """The files of a model. Raises NotFound."""
    if model in sources.built_in():
        return sources.BUILT_IN / model
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # cannot be the name of a file
        path = Path(model).expanduser()
        if path.exists():
            return path
        if _HUB_ID.fullmatch(model) and path.suffix != ".safetensors":
            return _PARTS["hub"].fetch(model, weights=False)
    return Path(sources.locate(model).folder)  # raises with the reason


def _size(args: argparse.Namespace, path: Path) -> Size | None:
    """The size in the arguments, else the model's default."""
    shapes = _PARTS["shapes"]
    size: Size | None = shapes.parse_size(args.size)
    defaults = sources.about(path).get("defaults", {}) if path.is_dir() else {}
    if size is None and {"height", "width"} <= defaults.keys():
        size = shapes.Size(defaults["height"], defaults["width"], defaults.get("num_frames"))
    if args.frames is None:
        return size
    frames = parse_integer(args.frames)
    if not frames:
        raise BadInput(f"cannot use frames={args.frames!r}", expected="an integer, 1 or more")
    if size is None:
        raise BadInput(
            f"cannot use frames={args.frames!r} alone", expected="--size 832x480 beside it"
        )
    return dataclasses.replace(size, frames=frames)
