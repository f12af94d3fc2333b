"""The CUDA part of the memory layer on a real device: does it hold, and what does it cost?

Our pool on the device and torch's own allocator by the pair; what filling and a training-like chain
cost; the memory fraction, the cache size and the out-of-memory chain as they act; a real UNet of
SDXL's size with random weights recorded by us, checked against torch's own figures, and torch's own
snapshot read by us. Needs torch with CUDA; diffusers for the UNet.

    PYTHONPATH=src python benchmarks/bench_cuda_memory.py --out results.json --keep FOLDER
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from report import RUNS, Measured, Row, add_quick, best_us, publish

import holdfast
from holdfast import memory
from holdfast.base.errors import OutOfMemory
from holdfast.memory.core import native_build
from holdfast.memory.profile import export
from holdfast.memory.profile.recording import Recording
from holdfast.memory.profile.report import Report
from holdfast.topology import discover

MB = 1 << 20


def pair_us(work: Callable[[], object], count: int = 20_000, repeats: int = 5) -> Measured:
    """Microseconds for one call."""
    return best_us(work, count, repeats, time.perf_counter)


def pairs() -> list[Row]:
    """Allocate and free on the device."""
    pool = memory.MemoryPool("cuda:0", limit="8GB")
    cuda = torch.cuda
    rows = []
    for size, label in ((4096, "4 KB"), (1 * MB, "1 MB"), (64 * MB, "64 MB")):
        ways: dict[str, Callable[[], object]] = {
            "holdfast": lambda size=size: pool.allocate(size),
            "torch.empty": lambda size=size: torch.empty(size, dtype=torch.uint8, device="cuda"),
            "torch, by address": lambda size=size: cuda.caching_allocator_delete(
                cuda.caching_allocator_alloc(size)
            ),
        }
        for name, way in ways.items():
            rows.append(Row(f"pair on the device, {label}", name, pair_us(way), "µs"))
    return rows


def preallocation() -> tuple[list[Row], dict[str, Any]]:
    """A pool that takes half of the device at once."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(0)[1]
    start = time.perf_counter()
    pool = memory.CUDAMemoryPool(0, memory_fraction=0.5)
    seconds = time.perf_counter() - start
    reserved = pool.stats().reserved_bytes
    row = Row("take half of the device", "holdfast", seconds * 1000, "ms", f"{reserved} bytes")
    return [row], {"total_bytes": total, "reserved_bytes": reserved, "share": reserved / total}


def fraction() -> dict[str, Any]:
    """What happens past the memory fraction, in torch and in our pool."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(0)[1]
    holdfast.cuda.set_memory_fraction(0.02)
    try:
        torch.empty(int(total * 0.03), dtype=torch.uint8, device="cuda")
        refused = False
    except torch.OutOfMemoryError:
        refused = True
    try:
        memory.MemoryPool("cuda:0").allocate(int(total * 0.03))
        text = None
    except OutOfMemory as exc:
        text = str(exc)
    holdfast.cuda.set_memory_fraction(1.0)
    return {"fraction": 0.02, "torch_refused": refused, "our_error": text}


def chain() -> dict[str, Any]:
    """Every stage of the out-of-memory chain rescues a request; then there is an error."""
    pool = memory.MemoryPool("cuda:0", limit=64 * MB)
    found: dict[str, Any] = {}

    class Cycle:
        block: Any
        me: Any

    gc.disable()
    garbage = Cycle()
    garbage.me, garbage.block = garbage, pool.allocate(40 * MB)
    del garbage
    block = pool.allocate(40 * MB)  # only after the cycle was collected
    gc.enable()
    found["garbage"] = block.size
    pieces = [pool.allocate(2 * MB) for _ in range(4)]
    del block, pieces
    block = pool.allocate(60 * MB)  # only after cached segments went back
    found["cache"] = block.size
    held = [block]
    del block
    pool.pool.on_pressure.append(lambda pool, size: held.clear())
    block = pool.allocate(50 * MB)  # only after the callback let go
    found["callback"] = block.size
    pool.pool.on_pressure.clear()
    try:
        with memory.tag("too much"):
            pool.allocate(50 * MB)
    except OutOfMemory as exc:
        found["error"] = str(exc)
    return found


def cache_size() -> dict[str, Any]:
    """torch's cache before and after the limit that was set takes hold."""
    torch.cuda.empty_cache()
    holdfast.cuda.set_cache_size("256MB")
    kept = [torch.empty(128 * MB, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del kept
    before = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    holdfast.memory_stats("cuda")
    after = torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)
    holdfast.cuda.cache_bytes = None
    return {"set_bytes": 256_000_000, "cached_before": before, "cached_after": after}


def denoise() -> Callable[[], Any]:
    """Four steps of a UNet of SDXL's size with random weights, then a picture is decoded."""
    from diffusers import AutoencoderKL, UNet2DConditionModel

    def work() -> Any:
        with torch.device("cuda"), memory.tag("weights"):
            unet = UNet2DConditionModel(
                sample_size=128,
                addition_embed_type="text_time",
                addition_time_embed_dim=256,
                attention_head_dim=[5, 10, 20],
                block_out_channels=(320, 640, 1280),
                cross_attention_dim=2048,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
                up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
                projection_class_embeddings_input_dim=2816,
                transformer_layers_per_block=[1, 2, 10],
                use_linear_projection=True,
            ).to(torch.bfloat16)
            vae = AutoencoderKL(
                block_out_channels=(128, 256, 512, 512),
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                layers_per_block=2,
                latent_channels=4,
            ).to(torch.bfloat16)
        new = {"dtype": torch.bfloat16, "device": "cuda"}
        latents, text = torch.randn(2, 4, 128, 128, **new), torch.randn(2, 77, 2048, **new)
        more = {"text_embeds": torch.randn(2, 1280, **new), "time_ids": torch.ones(2, 6, **new)}
        with torch.no_grad():
            with memory.tag("denoise"):
                for step in (900, 600, 300, 1):
                    noise = unet(latents, step, text, added_cond_kwargs=more).sample
                    latents = latents - 0.1 * noise
            with memory.tag("decode"):
                picture = vae.decode(latents[:1]).sample
        torch.cuda.synchronize()
        return picture

    return work


def recorded(keep: Path | None) -> tuple[list[Row], dict[str, Any]]:
    """The UNet without and with us watching; our figures beside torch's."""
    work = denoise()
    times: dict[str, float] = {}
    work()  # loads kernels
    title = "SDXL UNet and decoder, random weights, on an H200"
    for _ in range(2):  # the second round counts
        times["not recorded"] = timed(work)
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
        times["torch's own history"] = timed(work)
        torch.cuda.memory._record_memory_history(enabled=None)
        fresh()
        with memory.memory_profiler.record(title=title) as record:
            times["holdfast"] = timed(work)
            ended = time.perf_counter()
        times["finish"] = time.perf_counter() - ended
    recording = record.recording
    cuda_peak = peak_of(recording, "cuda:0")
    theirs = torch.cuda.max_memory_allocated(0)
    about = {
        "events": len(recording),
        "our_peak_bytes": cuda_peak,
        "torch_peak_bytes": theirs,
        "peak_ratio": cuda_peak / theirs,
        "notes": recording.notes,
        "summary": Report(recording).summary().splitlines(),
    }
    about["snapshot"] = snapshot(work)
    if keep is not None:
        recording.save(keep / "sdxl-cuda.hfmem")
        (keep / "sdxl-cuda.pickle").write_bytes(export.torch_snapshot(recording))
    about["finish_ms"] = times.pop("finish") * 1000  # making the document, after the work
    name = "SDXL UNet, 4 steps and a picture"
    order = ("holdfast", "torch's own history", "not recorded")
    return [Row(name, system, times[system] * 1000, "ms") for system in order], about


def fresh() -> None:
    """A device with nothing on it, peaks forgotten."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def timed(work: Callable[[], Any]) -> float:
    """Seconds on a fresh device."""
    fresh()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_of(recording: Recording, device: str) -> int:
    """The most bytes alive at once on one device."""
    places = {n for n, place in enumerate(recording.places_table) if place.device == device}
    moves = []
    for block in recording.lifetimes():
        if block.place in places:
            moves.append((block.start_ns, 1, block.size))
            if block.end_ns is not None:
                moves.append((block.end_ns, 0, -block.size))
    now = most = 0
    for _, _, size in sorted(moves):
        now += size
        most = max(most, now)
    return most


def snapshot(work: Callable[[], Any]) -> dict[str, Any]:
    """torch's own snapshot of the same work, read by us."""
    fresh()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    work()
    found = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    ours = export.from_torch_snapshot(found)
    return {
        "events": len(ours),
        "peak_bytes": peak_of(ours, "cuda:0"),
        "torch_peak_bytes": torch.cuda.max_memory_allocated(0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = RUNS / "cuda-memory.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--keep", type=Path, help="folder for the recording and the snapshot")
    add_quick(parser)  # all of it takes a minute
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("cuda memory: torch sees no CUDA device here; nothing to measure")
        return
    torch.cuda.init()
    rows = pairs()
    taken, preallocated = preallocation()
    about: dict[str, Any] = {"preallocation": preallocated}
    for name, part in (("fraction", fraction), ("chain", chain), ("cache_size", cache_size)):
        about[name] = part()
        print(name, json.dumps(about[name], indent=1))
    watched, about["recording"] = recorded(args.keep)
    print("\n".join(about["recording"]["summary"]))
    about["core"] = native_build.core().__name__
    about["torch"] = torch.__version__
    about["quick"] = args.quick
    publish("cuda memory", rows + taken + watched, discover(), args.out, **about)


if __name__ == "__main__":
    main()
