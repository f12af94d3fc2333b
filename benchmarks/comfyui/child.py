"""One process with ComfyUI in it: a model that has so much memory and no more, sampled both ways.

Run by bench_comfyui.py; `--reserve-vram` and all other options are ComfyUI's own.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import sys
import time
from typing import Any

import torch

from comfyui.models import SHAPES, Shape, conditioning, decoder, state_dict


class Comfy:
    """What is used of ComfyUI."""

    def __init__(self) -> None:
        importlib.import_module("comfy.options").enable_args_parsing()
        for name in ("sd", "sample", "model_management", "utils", "samplers"):
            setattr(self, name, importlib.import_module(f"comfy.{name}"))


def sampled(
    comfy: Any, shape: Shape, model: Any, text: Any, steps: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    """One picture's latent by ComfyUI's sampling, and what it took."""
    device = comfy.model_management.get_torch_device()
    times: list[float] = []

    def over(*_: Any) -> None:
        _wait(device)
        times.append(time.perf_counter())

    latent = torch.zeros(shape.latent)
    noise = comfy.sample.prepare_noise(latent, 7)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    with torch.inference_mode():
        result = comfy.sample.sample(
            model, noise, steps, shape.cfg, "euler", "simple", text, text, latent,
            callback=over, disable_pbar=True, seed=7,
        )  # fmt: skip
    _wait(device)
    whole_s = time.perf_counter() - began
    each = [b - a for a, b in itertools.pairwise(times)]
    figures = {
        "whole_s": whole_s,
        "first_step_s": times[0] - began,
        "steps_s": each,
        "step_s": sorted(each)[len(each) // 2],
        "on_device_bytes": model.loaded_size(),
    }
    if device.type == "cuda":
        figures["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return result.clone(), figures


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(name: str, steps: int, ways: list[str]) -> dict[str, Any]:
    """All ways in turn, twice each; images compared with those of the first."""
    comfy = Comfy()
    from holdfast.nodes.residency import HoldfastStreamModel  # after ComfyUI has read its options

    shape = SHAPES[name]
    device = comfy.model_management.get_torch_device()
    free_bytes = comfy.model_management.get_free_memory(device)
    with torch.inference_mode():
        weights = state_dict(shape, device)
        plain = comfy.sd.load_diffusion_model_state_dict(weights)
        vae = comfy.sd.VAE(sd=decoder(shape.latent[1]))
    del weights
    if device.type == "cuda":
        torch.cuda.empty_cache()
    make = {
        "comfyui": lambda: plain,
        "holdfast": lambda: HoldfastStreamModel().stream(plain, pack=False)[0],
        "holdfast, packed": lambda: HoldfastStreamModel().stream(plain)[0],
    }
    text = conditioning(shape)
    result: dict[str, Any] = {
        "model": shape.about,
        "device": str(device),
        "free_bytes": free_bytes,
        "weights_bytes": plain.model_size(),
        "beside_bytes": plain.memory_required(shape.latent),
        "reserve_vram_gib": comfy.model_management.EXTRA_RESERVED_VRAM / 2**30,
        "async_streams": comfy.model_management.NUM_STREAMS,
        "steps": steps,
        "ways": {},
    }
    result["predicted"] = predicted(shape, plain, text, steps)
    latents, images = {}, {}
    for way in ways:
        plain.detach()  # every way begins with the model in host memory, as it was loaded
        model = make[way]()
        runs = []
        for _ in range(2):
            latents[way], figures = sampled(comfy, shape, model, text, steps)
            runs.append(figures)
        with torch.inference_mode():
            images[way] = vae.decode(latents[way])
        result["ways"][way] = {"first": runs[0], "next": runs[1]}
        print(f"{way}: step {runs[1]['step_s'] * 1000:.1f} ms", file=sys.stderr, flush=True)
        del model
    for way in ways:
        found = result["ways"][way]
        found["latent"], found["image"] = digest(latents[way]), digest(images[way])
        found["image_deviation"] = float(images[way].double().std())
    return result


def predicted(shape: Shape, model: Any, text: Any, steps: int) -> dict[str, Any]:
    """What Will It Fit says before anything has run, and how long it takes to say it."""
    from holdfast.nodes.residency.fitting import (
        HoldfastWillItFit,  # after ComfyUI has read its options
    )

    began = time.perf_counter()
    latent = {"samples": torch.zeros(shape.latent)}
    with torch.inference_mode():
        found = HoldfastWillItFit().look(model, latent, steps, shape.cfg, positive=text)
    _, fits, seconds, stream, budget_gb, report = found["result"]
    return {
        "took_s": time.perf_counter() - began,
        "fits": fits,
        "step_s": seconds / steps,
        "stream": stream,
        "budget_gb": budget_gb,
        "report": report,
    }


def digest(tensor: torch.Tensor) -> str:
    """Equal for equal tensors, bit for bit."""
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    asked = json.loads(os.environ["BENCH_COMFYUI"])
    found = measured(asked["model"], asked["steps"], asked["ways"])
    print(json.dumps(found), flush=True)
