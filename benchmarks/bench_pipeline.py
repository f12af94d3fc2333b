"""What drawing a picture costs, beside diffusers' own pipelines on the same weights.

The built-in model everywhere; a FLUX.1 of full size with random weights, written to disk from its
configuration and loaded again, where there is a GPU that holds it.
Both systems run in one process on the same device and in the same precision, in turn: each figure
is the better of two, so that neither pays for being first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from diffusers import DiffusionPipeline
from report import Row, arguments, best, publish
from residency.run_flux import model_folder

from holdfast.pipeline import Pipeline
from holdfast.pipeline.devices.torch_devices import PRECISIONS
from holdfast.pipeline.model.sources import BUILT_IN
from holdfast.topology import discover

PROMPT = "a handwritten seven"


@dataclass(frozen=True)
class Figures:
    """One system on one model."""

    load_s: float
    step_ms: float
    total_ms: float
    peak_gb: float | None
    frames: np.ndarray


def ours(model: str, device: str, steps: int, side: int) -> tuple[Figures, str]:
    """Figures of Holdfast, and the precision it chose."""
    started = time.perf_counter()
    pipe = Pipeline.load(model, device=device)
    load_s = time.perf_counter() - started
    pipe(PROMPT, side, side, 2, seed=1)  # warm up
    began = time.perf_counter()
    result = pipe(PROMPT, side, side, steps, seed=1)
    total_ms = (time.perf_counter() - began) * 1000
    peak = None if device == "cpu" else result.cost.peak_bytes[device] / 1e9
    found = Figures(load_s, median_of(result.cost.step_ms), total_ms, peak, result.frames)
    return found, pipe.precision


def theirs(folder: Path, device: str, precision: str, steps: int, side: int) -> Figures:
    """Figures of diffusers' pipeline, told the same things."""
    started = time.perf_counter()
    pipe = DiffusionPipeline.from_pretrained(folder, torch_dtype=PRECISIONS[precision]).to(device)
    load_s = time.perf_counter() - started
    pipe.set_progress_bar_config(disable=True)
    marks: list[float] = []

    def mark(_pipe: Any, _step: int, _time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        synchronize(device)
        marks.append(time.perf_counter())
        return kwargs

    settings: dict[str, Any] = {
        "height": side,
        "width": side,
        "guidance_scale": defaults(folder)["guidance"],
        "max_sequence_length": min(512, pipe.tokenizer_2.model_max_length),
        "callback_on_step_end": mark,
        "output_type": "pil",
    }
    pipe(PROMPT, num_inference_steps=2, generator=torch.Generator().manual_seed(1), **settings)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    marks.clear()
    synchronize(device)
    began = time.perf_counter()
    image = pipe(
        PROMPT, num_inference_steps=steps, generator=torch.Generator().manual_seed(1), **settings
    ).images[0]
    total_ms = (time.perf_counter() - began) * 1000
    peak = None if device == "cpu" else torch.cuda.max_memory_allocated() / 1e9
    gaps = [(b - a) * 1000 for a, b in pairwise(marks)]
    return Figures(load_s, median_of(gaps), total_ms, peak, np.asarray(image)[None])


def median_of(values: Any) -> float:
    """The median of all steps but the first."""
    values = list(values)
    return statistics.median(values[1:] or values)


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def defaults(folder: Path) -> dict[str, Any]:
    """The defaults that a model's folder names."""
    return json.loads((folder / "holdfast.json").read_text())["defaults"]


def compare(name: str, folder: Path, device: str, steps: int, side: int) -> list[Row]:
    """Ours and theirs in turn, twice, with the weights of one gone before the other's come."""
    mine: list[Figures] = []
    others: list[Figures] = []
    precision = ""
    for _ in range(2):
        found, precision = ours(str(folder), device, steps, side)
        mine.append(found)
        others.append(theirs(folder, device, precision, steps, side))
    difference = int(np.abs(mine[0].frames.astype(int) - others[0].frames).max())
    remark = f"{side}x{side}, {steps} steps, {precision} on {device}"
    rows = []
    for what, unit in (("load", "s"), ("step", "ms"), ("total", "ms"), ("peak", "GB")):
        attribute = f"{what}_{unit.lower()}"
        for system, runs in (("holdfast", mine), ("diffusers", others)):
            values = [getattr(run, attribute) for run in runs]
            if values[0] is not None:
                rows.append(Row(f"{name}, {what}", system, best(values), unit, remark))
    rows.append(Row(f"{name}, largest difference of a byte", "holdfast", difference, "", remark))
    return rows


def main() -> None:
    """Run what fits this machine."""
    args = arguments("pipeline", "drawing, beside diffusers")
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    rows = compare("tiny-flux", BUILT_IN / "tiny-flux", device, 20, 128)
    if device != "cpu" and not args.quick and torch.cuda.mem_get_info()[0] > 60e9:
        with model_folder(argparse.Namespace(folder=None, tiny=False)) as (folder, made_s):
            torch.cuda.empty_cache()
            rows += compare("FLUX.1 shape, random weights", folder, device, 20, 1024)
        rows.append(Row("FLUX.1 shape, made and written", "holdfast", made_s, "s"))
    versions = {
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "transformers": transformers.__version__,
    }
    publish("pipeline", rows, discover(), args.out, quick=args.quick, versions=versions)


if __name__ == "__main__":
    main()
