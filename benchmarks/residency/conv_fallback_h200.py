"""Whether a convolution without room for its workspace changes all later ones of the process.

    PYTHONPATH=src python3 benchmarks/residency/conv_fallback_h200.py

cuDNN asks torch for a workspace. Where there is none, torch catches the error, tries the next
algorithm that cuDNN proposes and keeps that one for the shape, for as long as the process lives.
Its sums come in another order: outputs change in the last bits, also those of later runs with all
the memory there is. This runs convolutions of SDXL's shapes three times: with the whole device,
with hardly more than inputs and outputs, with the whole device again. It prints for each whether
the output changed, and how many allocations failed without an error.

TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT=-1 in the environment keeps no algorithm: then the third run has
to be like the first.
"""

from __future__ import annotations

import json
import os

import torch
import torch.nn.functional as F

SHAPES = [(2, 320, 128), (2, 640, 64), (2, 1280, 32), (2, 960, 128), (2, 2560, 32), (2, 1920, 64)]


def main() -> None:
    """Print one line of JSON for each shape."""
    device = torch.device("cuda", 0)
    _, total = torch.cuda.mem_get_info(device)
    for batch, channels, side in SHAPES:
        generator = torch.Generator(device).manual_seed(7)
        made = {"device": device, "dtype": torch.bfloat16, "generator": generator}
        x = torch.randn(batch, channels, side, side, **made)
        w = torch.randn(channels // 2, channels, 3, 3, **made) / (3 * channels**0.5)
        first = F.conv2d(x, w, padding=1)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_stats(device)["num_ooms"]
        room = torch.cuda.memory_reserved(device) + first.nbytes + (2 << 20)
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / total), device)
        try:
            tight: torch.Tensor | None = F.conv2d(x, w, padding=1)
        except torch.OutOfMemoryError:
            tight = None
        failed = torch.cuda.memory_stats(device)["num_ooms"] - before
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        again = F.conv2d(x, w, padding=1)
        off_by = None if tight is None else float((tight - first).abs().max())
        print(
            json.dumps(
                {
                    "shape": [batch, channels, side],
                    "caching": os.environ.get("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT", "default"),
                    "failed_allocations": failed,
                    "refused": tight is None,
                    "tight_off_by": off_by,
                    "again_off_by": float((again - first).abs().max()),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
