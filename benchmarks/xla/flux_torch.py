"""One step of FLUX.1's shape in torch: eager, and compiled as a whole graph in the default mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from residency.shapes import SHAPES, Inputs, Shape
from residency.weights import on_device, weight_bytes

from xla import kernels
from xla.working import Settings, steps_ms, timed

VARIANTS = ("eager", "compile")
OUTPUT = "flux-torch.npy"


def measure(settings: Settings) -> dict[str, Any]:
    """Both ways with the same weights; the eager output is left for the other parts."""
    shape = SHAPES["flux"](tiny=settings.tiny)
    device = torch.device(settings.device)
    module = on_device(shape, device)
    inputs = step_inputs(shape, device)
    figures: dict[str, Any] = {"weights_bytes": weight_bytes(module), "about": shape.about}
    figures["versions"] = {"torch": torch.__version__}
    outputs: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for variant in settings.variants or VARIANTS:
            compiles = variant == "compile"
            called: Any = torch.compile(module, fullgraph=True) if compiles else module
            start = time.perf_counter()
            outputs[variant] = called(**inputs)[0].float().cpu().numpy()
            first_s = time.perf_counter() - start

            def step(called: Any = called) -> None:
                called(**inputs)
                if device.type == "cuda":
                    torch.cuda.synchronize()

            figures[variant] = timed(steps_ms(step, settings), first_s=first_s)
            if settings.kernels and device.type == "cuda":
                figures[variant]["kernels"] = kernels.of_torch(step)
    return figures | _compared(outputs, Path(settings.folder) / OUTPUT)


def step_inputs(shape: Shape, device: torch.device) -> Inputs:
    """As in bench_residency, with a guidance that bfloat16 holds when it is multiplied by 1000.

    torch.compile keeps float32 between operations that it fuses, and embeds 3500 where eager has
    rounded it to 3504: quite another picture.
    """
    return shape.step_inputs(device) | {"guidance": torch.tensor([4.0], device=device)}


def _compared(outputs: dict[str, np.ndarray], path: Path) -> dict[str, Any]:
    if "eager" not in outputs:
        return {}
    np.save(path, outputs["eager"])
    return {
        "differences": {
            name: relative(one, outputs["eager"])
            for name, one in outputs.items()
            if name != "eager"
        }
    }


def relative(got: Any, want: Any) -> float:
    """The largest difference, as a part of the largest value."""
    return float(np.abs(np.asarray(got) - np.asarray(want)).max() / np.abs(np.asarray(want)).max())
