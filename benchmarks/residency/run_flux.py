"""FLUX.1 of full size drawn under a budget: memory, time, prediction, timeline, picture.

    python benchmarks/residency/run_flux.py --budget 6GB --steps 12 --out run-flux.json

Random weights in the shapes of FLUX.1-dev (transformer 23.8 GB, T5-XXL 9.5 GB, CLIP, autoencoder)
are written to a folder by another process, so that the memory of this one is that of the run alone.
Memory is what NVML counts for this process (pynvml), looked at every few milliseconds from before
the model is loaded to the end; without pynvml, what the card has taken altogether.
Three draws: the first finds out the order of the weights, the second is measured, the third is
recorded and its timeline checked. Ends with 1 where the budget was exceeded, the prediction is off
by more than 15 %, the timeline does not have every step or the third picture is another one.

`--tiny --device simulated` tries all of this on a machine without a card.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROMPT = "a handwritten seven"
WRITERS = 12
LOOK_S = 0.02  # torch keeps what it took, so a peak lasts; asking more often would slow steps down
WITHIN = 0.15  # of the measured step


# ---- the model


def make(folder: Path, tiny: bool) -> None:
    """Write the folder of a model with random weights in bf16."""
    from holdfast.pipeline.model.sources import BUILT_IN

    source = BUILT_IN / "tiny-flux"
    for name in ("tokenizer", "tokenizer_2", "scheduler"):
        shutil.copytree(source / name, folder / name)
    shutil.copy(source / "model_index.json", folder)
    (folder / "holdfast.json").write_text(json.dumps({"defaults": {"guidance": 3.5}}))
    if not tiny:
        config = folder / "tokenizer_2" / "tokenizer_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": 512}))
    for name, model in networks(source if tiny else None).items():
        place = folder / name
        if hasattr(model, "save_config"):
            model.save_config(place)
            file = place / "diffusion_pytorch_model.safetensors"
        else:
            model.config.save_pretrained(place)
            file = place / "model.safetensors"
        write_weights(file, shapes_of(model))


def networks(tiny: Path | None) -> dict[str, Any]:
    """The four networks without weights: those of FLUX.1-dev, or of a folder."""
    import torch
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    diffusers: Any = importlib.import_module("diffusers")
    transformer, autoencoder = diffusers.FluxTransformer2DModel, diffusers.AutoencoderKL
    with torch.device("meta"):
        if tiny is not None:
            return {
                "transformer": transformer.from_config(
                    transformer.load_config(tiny / "transformer")
                ),
                "text_encoder": CLIPTextModel(
                    CLIPTextConfig.from_pretrained(tiny / "text_encoder")
                ),
                "text_encoder_2": T5EncoderModel(T5Config.from_pretrained(tiny / "text_encoder_2")),
                "vae": autoencoder.from_config(autoencoder.load_config(tiny / "vae")),
            }
        return {
            "transformer": transformer(guidance_embeds=True),  # defaults are FLUX.1's
            "text_encoder": CLIPTextModel(
                CLIPTextConfig(
                    vocab_size=49408,
                    hidden_size=768,
                    intermediate_size=3072,
                    num_hidden_layers=12,
                    num_attention_heads=12,
                    max_position_embeddings=77,
                )
            ),
            "text_encoder_2": T5EncoderModel(
                T5Config(
                    vocab_size=32128,
                    d_model=4096,
                    d_kv=64,
                    d_ff=10240,
                    num_layers=24,
                    num_heads=64,
                    feed_forward_proj="gated-gelu",
                )
            ),
            "vae": autoencoder(
                block_out_channels=(128, 256, 512, 512),
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                layers_per_block=2,
                latent_channels=16,
                use_quant_conv=False,
                use_post_quant_conv=False,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            ),
        }


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """Each tensor once; those that are tied under their first name."""
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    kept = model.state_dict()
    return {name: tuple(p.shape) for name, p in model.named_parameters() if name in kept}


def write_weights(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of random numbers, written by several threads at once."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.pwrite(descriptor, len(text).to_bytes(8, "little") + text, 0)
        base = 8 + len(text)

        def write(name: str) -> None:
            at = base + header[name]["data_offsets"][0]
            data = memoryview(numbers(name, shapes[name])).cast("B")
            while data:
                done = os.pwrite(descriptor, data, at)
                data, at = data[done:], at + done

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, shapes))
    finally:
        os.close(descriptor)


def numbers(name: str, shape: tuple[int, ...]) -> Any:
    """bf16 as bytes: normal with 0.02 for matrices, ones for scales, zeros for biases."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if len(shape) > 1:
        values = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02)
    else:
        fill = 0.0 if name.endswith("bias") else 1.0
        values = torch.full(shape, fill, dtype=torch.bfloat16)
    return values.cpu().view(torch.int16).numpy()


@contextmanager
def model_folder(args: argparse.Namespace) -> Iterator[tuple[Path, float]]:
    """A folder with the model and the seconds it took; gone afterwards unless it was named."""
    folder = Path(args.folder or tempfile.mkdtemp(prefix="flux-shape-"))
    begun = time.perf_counter()
    try:
        if not (folder / "model_index.json").is_file():
            command = [sys.executable, __file__, "--make", str(folder)]
            subprocess.run(command + ["--tiny"] * args.tiny, check=True)
        yield folder, time.perf_counter() - begun
    finally:
        if args.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


# ---- memory


class Sampler(threading.Thread):
    """Looks at memory again and again, and keeps the most."""

    def __init__(self, look: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._look, self._over = look, threading.Event()
        self.peak_bytes = self.looks = 0

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.peak_bytes = max(self.peak_bytes, self._look())
            self.looks += 1

    def finish(self) -> None:
        self._over.set()
        self.join()


def memory_of_process(device: str) -> tuple[Callable[[], int], str]:
    """How much of the card is taken for this process, and who says so."""
    number = int(device.partition(":")[2] or 0)
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        import torch

        def taken() -> int:
            free, total = torch.cuda.mem_get_info(number)
            return total - free

        return taken, "torch.cuda.mem_get_info, all processes"
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used  # the driver's own, and other processes

    def counted() -> int:
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return process.usedGpuMemory
        # A container may not know its own number.
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used - before

    return counted, "NVML"


# ---- the run


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Load, draw three times, unload; what was found."""
    sampler, who = None, "the simulated device"
    if args.device != "simulated":
        look, who = memory_of_process(args.device)
        sampler = Sampler(look)
        sampler.start()

    from holdfast.base.units import parse_bytes
    from holdfast.pipeline import Pipeline

    begun = time.perf_counter()
    pipe = Pipeline.load(str(folder), device=args.device, budget=args.budget)
    load_s = time.perf_counter() - begun
    settings: dict[str, Any] = {"height": args.side, "width": args.side, "seed": 1}
    begun = time.perf_counter()
    pipe(PROMPT, steps=min(4, args.steps), **settings)
    first_s = time.perf_counter() - begun
    measured = pipe(PROMPT, steps=args.steps, **settings)
    with pipe.recording() as recorded:
        shown = pipe(PROMPT, steps=args.steps, **settings)
    (name, timeline), *_ = recorded.items()
    if args.timeline is not None:
        timeline.save(args.timeline)
    why, precision, source = pipe.why, pipe.precision, pipe.source.model
    tensors = max(one.cost.peak_bytes[name] for one in (measured, shown))
    pipe.unload()
    if sampler is not None:
        sampler.finish()
    budget = parse_bytes(args.budget)
    peak = tensors if sampler is None else sampler.peak_bytes
    transformer = next(r for r in measured.cost.residences if r.stage == "denoise")
    steady = statistics.median(measured.cost.step_ms[3:] or measured.cost.step_ms)
    return {
        "model": source,
        "why": why,
        "precision": precision,
        "size": f"{args.side}x{args.side}",
        "steps": args.steps,
        "budget_bytes": budget,
        "peak_bytes": peak,
        "peak_by": who,
        "looks": None if sampler is None else sampler.looks,
        "peak_tensors_bytes": tensors,
        "within_budget": peak <= budget,
        "predicted_ms": transformer.predicted_ms,
        "took_ms": transformer.took_ms,
        "step_ms_by_the_host": steady,
        "prediction_off_by": off_by(transformer.predicted_ms, transformer.took_ms),
        "load_s": load_s,
        "first_draw_s": first_s,
        "cost": measured.cost.to_dict(),
        "timeline": checked(timeline, args.steps),
        "picture": {
            "finite": True,  # values that are no numbers are refused before they become bytes
            "spread": float(measured.frames.std()),
            "same_again": bool((shown.frames == measured.frames).all()),
        },
    }


def off_by(predicted_ms: float | None, took_ms: float | None) -> float | None:
    """How far the prediction is from what was measured, as a share of it."""
    if predicted_ms is None or not took_ms:
        return None
    return abs(predicted_ms - took_ms) / took_ms


def checked(timeline: Any, steps: int) -> dict[str, Any]:
    """Whether every step is there with what crossed the link for it, and how busy that was."""
    entries = timeline.entries
    passes = [e for e in entries if e.kind == "pass" and "Transformer" in e.module]
    copies = [e for e in entries if e.kind == "copy" and "Transformer" in e.module]
    inside = [
        sum(c.nbytes for c in copies if c.end_ms > p.start_ms and c.start_ms < p.end_ms)
        for p in passes
    ]
    busy = [
        sum(max(0.0, min(c.end_ms, p.end_ms) - max(c.start_ms, p.start_ms)) for c in copies)
        / max(p.end_ms - p.start_ms, 1e-9)
        for p in passes
    ]
    summary = timeline.summary()
    return {
        "entries": len(entries),
        "passes_of_the_transformer": len(passes),
        "every_step": len(passes) == steps and all(size > 0 for size in inside),
        "bytes_over_the_link_each": inside,
        "link_busy_share_each": busy,
        "stall_ms": summary.stall_ms,
        "link_gb_s": summary.link_gb_s,
    }


def verdict(found: dict[str, Any], simulated: bool) -> bool:
    """Whether everything is as it should be; a simulated device predicts tiny layers badly."""
    off = found["prediction_off_by"]
    good = found["within_budget"] and found["timeline"]["every_step"]
    good = good and found["picture"]["same_again"]
    return good and (simulated or (off is not None and off <= WITHIN))


def main() -> int:
    """Make, run, tell."""
    parser = argparse.ArgumentParser(description="FLUX.1 of full size drawn under a budget")
    add = parser.add_argument
    add("--steps", type=int, default=12)
    add("--budget", default=None, help="default 6GB, tiny: 6MB")
    add("--side", type=int, default=None, help="pixels; default 1024, tiny: 64")
    add("--device", default="cuda:0")
    add("--tiny", action="store_true", help="the shapes of the built-in tiny-flux")
    add("--folder", help="where the model is or shall stay (default: one that is removed)")
    add("--out", help="write the JSON there too")
    add("--timeline", help="write the page of the recorded draw there")
    add("--make", metavar="FOLDER", help="only write the model")
    args = parser.parse_args()
    if args.make is not None:
        Path(args.make).mkdir(parents=True, exist_ok=True)
        make(Path(args.make), args.tiny)
        return 0
    args.budget = args.budget or ("6MB" if args.tiny else "6GB")
    args.side = args.side or (64 if args.tiny else 1024)
    with model_folder(args) as (folder, made_s):
        found = {"made_s": made_s, **run(args, folder), **machine(args.device)}
    found["good"] = verdict(found, args.device == "simulated")
    text = json.dumps(found, indent=2)
    print(text)
    if args.out is not None:
        Path(args.out).write_text(text + "\n")
    return 0 if found["good"] else 1


def machine(device: str) -> dict[str, Any]:
    """What it ran on."""
    import diffusers
    import torch
    import transformers

    card = device if device == "simulated" else torch.cuda.get_device_name(device)
    versions = {one.__name__: one.__version__ for one in (torch, diffusers, transformers)}
    return {"device": card, "versions": versions, "python": sys.version.split()[0]}


if __name__ == "__main__":
    sys.exit(main())
