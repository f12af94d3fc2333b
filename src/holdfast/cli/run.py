"""Draw a picture or a video from a prompt.

MODEL is a built-in model (tiny-flux, tiny-sdxl, tiny-wan), a folder in diffusers layout, a single
safetensors file, or a hub id. FLUX.1, SDXL and Wan 2.1/2.2 are drawn. The settings are kept inside
the picture; the same seed gives the same picture.

examples:
holdfast run tiny-flux --prompt "a handwritten seven" --seed 1 --out seven.png
holdfast run tiny-wan --prompt "a handwritten three turning" --out three.gif
holdfast run ~/FLUX.1-dev --prompt "a lighthouse" --device cuda:1
holdfast run ~/FLUX.1-dev --prompt "a lighthouse" --budget 6GB
holdfast run flux1.safetensors --config ~/FLUX.1-dev --prompt "a lighthouse"
holdfast run tiny-flux --device text=cpu,denoise=cuda --timeline run.html
holdfast run ~/FLUX.1-dev --prompt "a lighthouse" --device xla --hosts auto
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base.config import Config, variable_for
from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path, resolve_path
from holdfast.base.html import Section
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes
from holdfast.cli.drawing import DRAWING, DRAWING_OPTIONS, PLACING_OPTIONS
from holdfast.cli.files import parse_integer, write_file
from holdfast.cli.parsing import option
from holdfast.cli.progress import show_stages
from holdfast.cli.tables import as_json
from holdfast.pipeline import Pipeline, Result
from holdfast.pipeline.model.quick_imports import quick_imports
from holdfast.pipeline.model.sources import built_in
from holdfast.pipeline.output import media
from holdfast.pipeline.output.timeline import Timeline
from holdfast.pipeline.output.timeline_page import render
from holdfast.pipeline.run.progress import Event, Listener
from holdfast.pipeline.run.settings import check_ranges

# Loaded with --hosts; an error names the missing extra.
_PARTS: Registry[Any] = Registry(
    "option", {"--hosts": Entry("holdfast.xla.cluster.hosts", extra="run,xla")}
)


OPTIONS = (
    option("model MODEL", "what to draw with: see above", nargs="?"),
    option("--prompt TEXT", "what to draw (default: a built-in model's own example)"),
    option("--out FILE", "where to: .png .webp .jpg .gif .mp4 (default: MODEL-SEED here)"),
    *DRAWING_OPTIONS,
    option("--seed N", "same seed, same picture (default: random, and printed)"),
    *PLACING_OPTIONS,
    option("--hosts WHO", "draw together on XLA: auto, or HOST:PORT,INDEX/COUNT"),
    option("--timeline FILE", "write an HTML page of stages and memory over time"),
    option("--json", "print JSON: settings, times, memory, the file"),
)


def run(args: argparse.Namespace) -> int:
    """Draw, save, report; of several hosts that draw together, only the first saves and reports."""
    if Config.load(hosts=args.hosts).hosts is None:
        return _run(args)
    if "xla" not in args.device:
        raise BadInput(
            f"cannot draw together with other hosts on device {args.device!r}",
            expected="--device xla, for all stages or for some",
            hint=f"--device xla, or neither --hosts nor {variable_for('hosts')} to draw alone",
        )
    hosts = _PARTS["--hosts"]
    with hosts.joined(args.hosts) as here:
        if args.seed is None:
            args.seed = str(hosts.agree(secrets.randbits(32)))
        return _run(args, prints=here.is_first)


def _run(args: argparse.Namespace, prints: bool = True) -> int:
    target = None if args.out is None else expand_path(args.out)
    page = None if args.timeline is None else expand_path(args.timeline)
    _refuse_early(args, target, page)
    quick_imports()
    timeline = Timeline()
    with show_stages(prints) as show, timeline:
        pipe, result, weights = _draw(args, target, timeline, show)
    if not prints:
        return 0
    path = target or _free_name(pipe, result)
    result.save(path, args.fps)
    if page is not None:
        picture = media.encode(result.frames[:1], ".png", result.settings)
        write_file(page, render(timeline, result.settings, picture, weights))
    found = (pipe, result, path, page)
    print(as_json(_report(*found)) if args.json else _text(*found))
    return 0


def _refuse_early(args: argparse.Namespace, target: Path | None, page: Path | None) -> None:
    """Refuse bad options before a model is opened."""
    frames = args.num_frames
    media.check_target(target or Path("picture.gif"), parse_integer(frames or "") or 1)
    media.check_fps(args.fps)
    check_ranges(steps=args.steps, seed=args.seed, guidance=args.guidance)
    if page is not None:
        media.check_folder(page)
        if target is not None and resolve_path(page) == resolve_path(target):
            raise BadInput(
                f"cannot write the picture and the page to the same file {str(page)!r}",
                expected="another name for --timeline",
                hint=str(page.with_suffix(".html")),
            )


def _draw(
    args: argparse.Namespace, target: Path | None, timeline: Timeline, show: Listener
) -> tuple[Pipeline, Result, list[Section]]:
    """The loaded model, its result, and HTML charts of its weights."""
    last: tuple[Any, ...] = ()

    def on_event(event: Event) -> None:
        nonlocal last
        show(event)
        now = (event.stage, event.done, event.total)
        if now != last:  # there are too many events with bytes for a page
            timeline.mark(*now)
        last = now

    if args.model is None:
        lines = [f"    {name:<12} {summary}" for name, summary in built_in().items()]
        raise BadInput(
            "no model was named",
            expected="a folder, a .safetensors file, a hub id, or one of\n" + "\n".join(lines),
            hint="holdfast run tiny-flux",
        )
    prepared = Pipeline.prepare(
        args.model,
        device=args.device,
        budget=args.budget,
        precision=args.precision,
        config=args.config,
        progress=on_event,
    )
    options = {name: getattr(args, name) for name in (*DRAWING, "seed")}
    prompt = prepared.source.defaults.get("prompt") if args.prompt is None else args.prompt
    if prompt is None:
        raise BadInput("no prompt was given", expected='--prompt "what to draw"')
    settings = prepared.check(prompt, **options)
    if target is not None:
        media.check_target(target, settings.num_frames)
    pipe = prepared.load(on_event)
    device = pipe.devices["denoise"]
    timeline.device_bytes = None if device.name == "cpu" else device.used_bytes
    if args.timeline is None:
        return pipe, pipe.draw(settings, progress=on_event), []
    with pipe.recording() as recorded:
        result = pipe.draw(settings, progress=on_event)
    return pipe, result, [one.section() for one in recorded.values()]


def _free_name(pipe: Pipeline, result: Result) -> Path:
    """MODEL-SEED.png, with a number if that exists."""
    name = Path(pipe.source.model).resolve().name.removesuffix(".safetensors")
    stem = f"{name}-{result.settings['seed']}"
    suffix = ".png" if len(result.frames) == 1 else ".gif"
    path, number = Path(f"{stem}{suffix}"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}{suffix}"), number + 1
    return path


def _weights(result: Result) -> Iterator[str]:
    """For each denoiser: whether its weights were kept or streamed, and the predicted time."""
    for one in result.cost.residences:
        if one.stage != "denoise" or one.streamed_bytes is None or one.link_bytes is None:
            continue
        line = f"{one.network} kept, {format_bytes(one.weight_bytes)}"
        if one.streamed_bytes:
            streamed, weights = format_bytes(one.streamed_bytes), format_bytes(one.weight_bytes)
            line = f"{one.network} streamed {streamed} of {weights} a step"
        if one.link_bytes < one.streamed_bytes:
            line += f", packed to {format_bytes(one.link_bytes)}"
        if one.predicted_ms is not None and one.took_ms is not None:
            line += f"; predicted {one.predicted_ms:.3g} ms, took {one.took_ms:.3g}"
        yield line


def _report(pipe: Pipeline, result: Result, path: Path, page: Path | None) -> dict[str, Any]:
    return {
        "file": str(path),
        "timeline": None if page is None else str(page),
        "settings": result.settings,
        "why": pipe.why,
        "notes": list(result.notes),
        "load_s": round(pipe.load_s, 3),
        "cost": result.cost.to_dict(),
    }


def _text(pipe: Pipeline, result: Result, path: Path, page: Path | None) -> str:
    cost, settings = result.cost, result.settings
    frames, height, width, _ = result.frames.shape
    size = f"{width}x{height}" + (f", {frames} frames" if frames > 1 else "")
    peaks = ", ".join(f"{format_bytes(p)} on {name}" for name, p in cost.peak_bytes.items())
    lines = [
        f"{'picture' if frames == 1 else 'video  '}  {path}  ({size}, seed {settings['seed']})",
        f"device   {pipe.why}; {pipe.precision}",
        f"time     load {pipe.load_s:.1f} s, prompt {cost.text_ms:.0f} ms, "
        f"{settings['steps']} steps of {cost.mean_step_ms:.1f} ms, decode {cost.decode_ms:.0f} ms",
        f"memory   peak {peaks}",
        *(f"weights  {line}" for line in _weights(result)),
    ]
    if page is not None:
        lines.append(f"timeline {page}")
    lines += [f"note     {note}" for note in result.notes]
    return "\n".join(lines)
