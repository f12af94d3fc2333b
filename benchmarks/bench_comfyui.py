"""ComfyUI with a model that does not fit: its own lowvram beside Stream Model, in one process.

A model of real shape with random weights is loaded by ComfyUI, which is told to leave so much of
the device alone (`--reserve-vram`) that a share of the weights fits. Then the same picture is
sampled by ComfyUI's own sampler, twice in each way: the model as it is (ComfyUI loads what fits and
casts the rest layer by layer, on its offload streams, from pinned memory), and through the node
Stream Model. Latents and pictures are compared bit for bit, also with those of a process in which
all fits.

ComfyUI has to be importable: PYTHONPATH=FOLDER with its `comfy` (see residency/bundle.sh; it needs
torchsde). With `--cpu` everything runs in host memory, which shows that it runs and nothing more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comfyui.models import SHAPES
from report import RUNS, Row, add_quick, publish

from holdfast.topology import discover

WAYS = ("comfyui", "holdfast", "holdfast, packed")
GIB = 1 << 30


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one run."""
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--model", choices=sorted(SHAPES), default="flux")
    parser.add_argument("--shares", type=_shares, help="percent that fits (default 25,50)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a picture")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--cpu", action="store_true", help="ComfyUI on the CPU")
    parser.add_argument("--out", type=Path, default=RUNS / "comfyui.json")
    add_quick(parser)
    found = parser.parse_args(arguments)
    found.shares = found.shares or ([0.5] if found.quick else [0.25, 0.5])
    return found


def _shares(text: str) -> list[float]:
    return [float(part) / 100 for part in text.split(",") if part]


def child(asked: argparse.Namespace, ways: Sequence[str], reserve_bytes: float) -> dict[str, Any]:
    """What a process of its own has measured. Raises RuntimeError with its last words."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "comfyui" / "child.py")]
    command += ["--reserve-vram", f"{reserve_bytes / GIB:.3f}", *(["--cpu"] if asked.cpu else [])]
    wanted = {"model": asked.model, "steps": asked.steps, "ways": list(ways)}
    paths = [str(here), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"BENCH_COMFYUI": json.dumps(wanted), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(complete: dict[str, Any], found: dict[str, Any]) -> None:
    """Say for each way whether its picture is that of the others."""
    wanted = complete["ways"]["comfyui"]
    for way in found["ways"].values():
        way["same_image"] = all(way[what] == wanted[what] for what in ("latent", "image"))


def rows_of(complete: dict[str, Any], measured: Sequence[dict[str, Any]]) -> list[Row]:
    """A step of the second picture, and the whole first and second one, in each way."""
    step = complete["ways"]["comfyui"]["next"]["step_s"]
    rows = [Row("step, all fits", "comfyui", step * 1000, "ms")]
    for found in measured:
        fits = f"{found['share']:.0%} fits"
        ours_first = sorted(
            found["ways"].items(), key=lambda way: not way[0].startswith("holdfast")
        )
        for way, figures in ours_first:
            same = "same image" if figures["same_image"] else "ANOTHER IMAGE"
            rows.append(Row(f"step, {fits}", way, figures["next"]["step_s"] * 1000, "ms", same))
        said = found["predicted"]
        told = f"said in {said['took_s']:.1f} s, before anything ran"
        rows.append(Row(f"step, {fits}", "Will It Fit", said["step_s"] * 1000, "ms", told))
        for picture in ("first", "next"):
            for way, figures in ours_first:
                subject = f"{picture} picture, {found['steps']} steps, {fits}"
                rows.append(Row(subject, way, figures[picture]["whole_s"], "s"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    asked = options(arguments)
    complete = child(asked, ["comfyui"], 0.0)
    about, machine = f"comfyui, {complete['model']}", discover()
    measured: list[dict[str, Any]] = []
    for share in asked.shares:
        room = complete["weights_bytes"] * share + complete["beside_bytes"]
        found = child(asked, asked.ways, max(0.0, complete["free_bytes"] - room))
        compared(complete, found)
        measured.append(found | {"share": share})
        rows = rows_of(complete, measured)  # written after each, as a run may be broken off
        more = {"quick": asked.quick, "complete": complete, "measured": measured}
        publish(about, rows, machine, asked.out, **more)


if __name__ == "__main__":
    main()
