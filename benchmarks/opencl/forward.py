"""Whole models of diffusers on the OpenCL engine, held against torch.

    python -m benchmarks.opencl.forward [--sizes tiny,middle] [--reference cuda] [--json FILE]

A UNet (SD 1.5's kind) and a FLUX transformer with random weights, tiny and of middle size. Prints
the largest difference over the largest number, ops that the host computed, and milliseconds for a
step of each. The engine computes in float32; so does torch, with TF32 off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.opencl.shell import Shell
from holdfast.compute.engine import ENGINES, fallbacks

UNETS = {
    "tiny": {"block_out_channels": (32, 64), "cross_attention_dim": 32, "attention_head_dim": 8},
    "middle": {
        "block_out_channels": (128, 256),
        "cross_attention_dim": 256,
        "attention_head_dim": 8,
    },
}
FLUXES = {
    "tiny": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2},
    "middle": {"num_layers": 2, "num_single_layers": 4, "num_attention_heads": 8},
}
_SIDE = {"tiny": 16, "middle": 64}


def unet(size: str) -> tuple[Any, dict[str, Any]]:
    """A model and its arguments."""
    from diffusers import UNet2DConditionModel

    options = UNETS[size]
    model = UNet2DConditionModel(
        sample_size=_SIDE[size],
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
        **options,
    )
    given = {
        "sample": torch.randn(2, 4, _SIDE[size], _SIDE[size]),
        "timestep": torch.tensor([3.0, 7.0]),
        "encoder_hidden_states": torch.randn(2, 77, options["cross_attention_dim"]),
    }
    return model, given


def flux(size: str) -> tuple[Any, dict[str, Any]]:
    """A model and its arguments."""
    from diffusers import FluxTransformer2DModel

    wide = 32 if size == "tiny" else 128
    axes = (4, 14, 14) if size == "tiny" else (16, 56, 56)
    model = FluxTransformer2DModel(
        in_channels=16,
        attention_head_dim=wide,
        joint_attention_dim=64,
        pooled_projection_dim=48,
        axes_dims_rope=axes,
        guidance_embeds=True,
        **FLUXES[size],
    )
    side = _SIDE[size] // 2
    places = torch.stack([torch.zeros(side * side), *(t.reshape(-1) for t in _grid(side))], dim=-1)
    given = {
        "hidden_states": torch.randn(1, side * side, 16),
        "encoder_hidden_states": torch.randn(1, 32, 64),
        "pooled_projections": torch.randn(1, 48),
        "timestep": torch.tensor([0.4]),
        "guidance": torch.tensor([3.5]),
        "img_ids": places,
        "txt_ids": torch.zeros(32, 3),
    }
    return model, given


def _grid(side: int) -> tuple[torch.Tensor, ...]:
    line = torch.arange(side, dtype=torch.float32)
    return torch.meshgrid(line, line, indexing="ij")


MODELS = {"unet": unet, "flux": flux}


def compared(name: str, size: str, engine: Any, reference: str) -> dict[str, Any]:
    """What one model gives on the engine and by torch."""
    torch.manual_seed(0)
    model, given = MODELS[name](size)
    model = model.eval().to(reference)
    there = {k: v.to(reference) for k, v in given.items()}
    with torch.no_grad():
        expected, torch_ms = _timed(lambda: model(**there).sample, _waiting(reference))
    expected = expected.cpu()
    shell = Shell(engine)
    model = model.to("cpu")
    _replace(model, shell)
    before = dict(fallbacks)
    ours = {k: shell.put(v) for k, v in given.items()}
    with torch.no_grad(), shell:
        found, ours_ms = _timed(lambda: model(**ours).sample, engine.synchronize)
    result = shell.get(found)
    difference = (result - expected).abs().max() / expected.abs().max()
    hosted = {op: n - before.get((e, op), 0) for (e, op), n in fallbacks.items() if e == "opencl"}
    return {
        "model": f"{size} {name}",
        "parameters": sum(p.numel() for p in model.parameters()),
        "difference": float(difference),
        "ours_ms": ours_ms,
        "torch_ms": torch_ms,
        "torch_on": reference,
        "on_host": {op: n for op, n in hosted.items() if n},
    }


def _replace(model: Any, shell: Shell) -> None:
    """Have every weight of a module be a tensor of the engine."""
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                there = shell.put(value.data)
                module._parameters[name] = torch.nn.Parameter(there, False)
                module._parameters[name].ours = there.ours
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = shell.put(value)


def _waiting(place: str) -> Any:
    return torch.cuda.synchronize if place == "cuda" else lambda: None


def _timed(work: Any, wait: Any, repeats: int = 3) -> tuple[Any, float]:
    out = work()
    wait()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        out = work()
        wait()
        best = min(best, (time.perf_counter() - start) * 1000)
    return out, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="tiny,middle")
    parser.add_argument("--reference", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    engine = ENGINES["opencl"]
    rows = []
    for size in options.sizes.split(","):
        for name in MODELS:
            rows.append(compared(name, size, engine, options.reference))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["difference"] > 1e-4 for row in rows):
        sys.exit("a model is further than 1e-4 from torch")


if __name__ == "__main__":
    main()
