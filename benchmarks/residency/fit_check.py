"""What `residency.fit` predicts for the cells of the FLUX table, and how long it takes to say so.

    PYTHONPATH=src python3 benchmarks/residency/fit_check.py > out/fit_check.json

The module has no weights (it is built on meta). `cold` is the first question in a new process with
an empty cache: layers are timed on the device. Each cell is asked twice after that, with what is on
disk by then. Compare `step_ms` with the measured steps of the same share kept, packed and not.
The published file has three processes: one with an empty --cache, one that finds what it left there
(`from_disk`), and after the steps were `measured` one with an empty cache `again`.
With --device simulated it is a trial without a GPU; --size makes it a small one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import metadata
from typing import Any

import torch
from diffusers import FluxTransformer2DModel

from holdfast.residency.predict.fit import fit
from holdfast.residency.predict.networks import dtype_of
from holdfast.residency.predict.shadow import build_on_meta, on_meta, shadow

KEEPS = (0.0, 0.25, 0.5, 0.75)


def main() -> int:
    """Ask for every cell; JSON to the standard output."""
    parser = argparse.ArgumentParser(description="what fit predicts for FLUX")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="1024x1024")
    parser.add_argument("--cache", help="folder with earlier measurements (default: an empty one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        os.environ["HOLDFAST_CACHE_DIR"] = options.cache or empty
        print(json.dumps(_report(options.device, options.size), indent=1))
    return 0


def _report(device: str, size: str) -> dict[str, Any]:
    module = build_on_meta(lambda: FluxTransformer2DModel(guidance_embeds=True))
    module = shadow(module, on_meta(dtype_of(module, torch.bfloat16)))
    weight_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
    if device.startswith("cuda"):
        torch.zeros(1, device=device)  # the driver's own start is nobody's measurement
    started = time.perf_counter()
    first = fit(module, device, "8GB", size)
    cold_s = time.perf_counter() - started
    started = time.perf_counter()
    fit(module, device, "8GB", size)
    return {
        "torch": torch.__version__,
        "diffusers": metadata.version("diffusers"),
        "device": first.device,
        "weight_bytes": weight_bytes,
        "cold_s": round(cold_s, 3),
        "cached_s": round(time.perf_counter() - started, 3),
        "at_8gb": first.to_dict(),
        "words": str(first).splitlines(),
        "cells": [
            _cell(module, device, size, int(keep * weight_bytes), packed)
            for keep in KEEPS
            for packed in (False, True)
        ],
    }


def _cell(module: Any, device: str, size: str, keep_bytes: int, packed: bool) -> dict[str, Any]:
    started = time.perf_counter()
    answer = fit(module, device, None, size, pack=packed, keep_bytes=keep_bytes)
    return {
        "keep_bytes": keep_bytes,
        "packed": packed,
        "step_ms": answer.step_ms,
        "floor_ms": answer.floor_ms,
        "resident_ms": answer.resident_ms,
        "link_bytes": answer.link_bytes,
        "streamed_bytes": answer.streamed_bytes,
        "activation_bytes": answer.activation_bytes,
        "took_s": round(time.perf_counter() - started, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
