"""Draw a picture or a video from a prompt.

MODEL is a built-in model (tiny-flux, tiny-sdxl, tiny-wan), a folder in diffusers layout, a single
safetensors file, or a hub id. FLUX.1, SDXL and Wan 2.1/2.2 are drawn. The settings are kept inside
the picture; the same seed gives the same picture.

examples:
holdfast run tiny-flux --prompt "a red handwritten seven on yellow paper" --seed 1 --out seven.png
holdfast run tiny-wan --prompt "a handwritten three turning" --out three.gif
holdfast run ~/models/FLUX.1-dev --prompt "a lighthouse" --device cuda --precision bf16
holdfast run flux1-dev.safetensors --config ~/models/FLUX.1-dev --prompt "a lighthouse"
holdfast run tiny-flux --device text=cpu,denoise=cuda --timeline run.html --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes
from holdfast.cli.drawing import DRAWING, add_drawing, add_placing
from holdfast.cli.files import write_text
from holdfast.cli.progress import shown
from holdfast.pipeline import Pipeline, Result, media
from holdfast.pipeline.progress import Listener
from holdfast.pipeline.sources import built_in
from holdfast.pipeline.timeline import Timeline
from holdfast.pipeline.timeline_page import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `holdfast run`."""
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="what to draw with: see above")
    add("--prompt", metavar="TEXT", help="what to draw (the built-in models have a default)")
    add("--out", metavar="FILE", help="where to: .png .webp .jpg .gif .mp4 (default MODEL-SEED)")
    add_drawing(parser)
    add("--seed", metavar="N", help="same seed, same picture (default: random, and told)")
    add_placing(parser)
    add("--timeline", metavar="FILE", help="write an HTML page of stages and memory over time")
    add("--json", action="store_true", help="print JSON: settings, times, memory, the file")


def run(args: argparse.Namespace) -> int:
    """Draw, save, tell."""
    model = _model(args.model)
    target = None if args.out is None else Path(args.out).expanduser()
    if target is not None:
        media.check_target(target, _frames_so_far(args.num_frames))
    if args.timeline is not None:
        _check_folder(args.timeline)
    with shown() as show:
        pipe, result, page = _draw(args, model, target, show)
    path = target or _free_name(pipe, result)
    result.save(path, args.fps)
    if args.timeline is not None:
        write_text(args.timeline, page)
    report = _report(pipe, result, path)
    print(json.dumps(report, indent=2) if args.json else _words(pipe, result, path, args.timeline))
    return 0


def _draw(
    args: argparse.Namespace, model: str, target: Path | None, show: Listener
) -> tuple[Pipeline, Result, str]:
    """The loaded model, what it drew, and a page about both."""
    timeline = Timeline()

    def heard(event: Any) -> None:
        show(event)
        timeline.mark(event.stage, event.done, event.total)

    with timeline:
        pipe = Pipeline.load(
            model,
            device=args.device,
            budget=args.budget,
            precision=args.precision,
            config=args.config,
            progress=heard,
        )
        timeline.device_bytes = _device_bytes(pipe)
        prompt, asked = _prompt(args.prompt, pipe), (*DRAWING, "seed")
        settings = pipe.check(prompt, **{name: getattr(args, name) for name in asked})
        if target is not None:
            media.check_target(target, settings.num_frames)
        result = pipe.draw(settings, progress=heard)
    picture = media.encode(result.frames[:1], ".png", result.settings)
    return pipe, result, render(timeline, result.settings, picture)


def _model(model: str | None) -> str:
    if model is None:
        lines = [f"    {name:<12} {summary}" for name, summary in built_in().items()]
        raise BadInput(
            "no model was named",
            expected="a folder, a .safetensors file, a hub id, or one of\n" + "\n".join(lines),
            hint="holdfast run tiny-flux",
        )
    return model


def _prompt(prompt: str | None, pipe: Pipeline) -> str:
    found = pipe.source.defaults.get("prompt") if prompt is None else prompt
    if found is None:
        raise BadInput("no prompt was given", expected='--prompt "what to draw"')
    return found


def _frames_so_far(text: str | None) -> int:
    """Enough to refuse a wrong file name before a model is loaded."""
    return int(text) if text is not None and text.isdecimal() else 1


def _check_folder(page: str) -> None:
    """Refuse now what would fail after the work."""
    folder = Path(page).expanduser().parent
    if not folder.is_dir():
        raise BadInput(
            f"cannot write {page!r}: there is no folder {str(folder)!r}",
            expected="a path in a folder that exists",
            hint=f"mkdir -p {folder}",
        )


def _device_bytes(pipe: Pipeline) -> Any:
    device = pipe.devices["denoise"]
    return None if device.name == "cpu" else device.used_bytes


def _free_name(pipe: Pipeline, result: Result) -> Path:
    """MODEL-SEED.png, with a number when that is there already."""
    stem = f"{Path(pipe.source.model).stem}-{result.settings['seed']}"
    suffix = ".png" if len(result.frames) == 1 else ".gif"
    path, number = Path(f"{stem}{suffix}"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}{suffix}"), number + 1
    return path


def _report(pipe: Pipeline, result: Result, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "settings": result.settings,
        "why": pipe.why,
        "load_s": round(pipe.load_s, 3),
        "cost": result.cost.to_dict(),
    }


def _words(pipe: Pipeline, result: Result, path: Path, timeline: str | None) -> str:
    cost, settings = result.cost, result.settings
    frames, height, width, _ = result.frames.shape
    size = f"{width}x{height}" + (f", {frames} frames" if frames > 1 else "")
    peaks = ", ".join(f"{format_bytes(p)} on {name}" for name, p in cost.peak_bytes.items())
    lines = [
        f"picture  {path}  ({size}, seed {settings['seed']})",
        f"device   {pipe.why}; {pipe.precision}",
        f"time     load {pipe.load_s:.1f} s, prompt {cost.text_ms:.0f} ms, "
        f"{settings['steps']} steps of {cost.mean_step_ms:.1f} ms, decode {cost.decode_ms:.0f} ms",
        f"memory   peak {peaks}",
    ]
    if timeline is not None:
        lines.append(f"timeline {timeline}")
    return "\n".join(lines)
