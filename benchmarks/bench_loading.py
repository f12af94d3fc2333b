"""How fast weights get from a file into a module, beside safetensors and diffusers.

One file of about a gigabyte: a FLUX.1 shape with one block of each kind, random weights in bf16.
Every system makes the module without weights and fills it; then each page of each weight is touched
once, because the others only map the file and would read it during the first step. From the cache
that copies nothing; but mapped pages cannot be pinned, and so cannot be streamed at the speed of
the link. So each of the others has a second row, where every weight is copied to memory of its own,
as our slabs are and as whoever pins them has to. Runs go in turns, forwards and backwards, and the
median counts. GB/s are bytes of the file.

Three subjects: the file in the system's cache; after the cache was dropped (as far as a guest can:
the host of a virtual machine may have a cache of its own); and in the cache, converted to fp16.
The peak is what the process grew by at most, over the bytes of the weights; pages of a mapped file
count, as they do for whoever looks at the process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import safetensors
import safetensors.torch
import torch
from accelerate import init_empty_weights
from diffusers import FluxTransformer2DModel
from report import RUNS, Row, add_quick, middle, publish

from holdfast.memory.core import system_pages
from holdfast.memory.profile.samples import rss_bytes
from holdfast.residency.files.freeing import trim
from holdfast.residency.files.loading import load
from holdfast.residency.files.reading import default_threads
from holdfast.topology import discover

CONFIG: dict[str, Any] = {"num_layers": 1, "num_single_layers": 1, "guidance_embeds": True}
WEIGHTS = "diffusion_pytorch_model.safetensors"
STORED = torch.bfloat16
System = Callable[[Path, torch.dtype], torch.nn.Module]


def empty() -> FluxTransformer2DModel:
    """The module without weights."""
    with init_empty_weights():
        return FluxTransformer2DModel(**CONFIG)


def ours(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """Slabs."""
    module = empty()
    load(module, folder / WEIGHTS, dtype=dtype)
    return module


def ours_small_pages(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """Slabs of torch's own memory. Huge pages can be dear in a guest whose host takes them back."""
    module = empty()
    load(
        module,
        folder / WEIGHTS,
        dtype=dtype,
        slab=lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
    )
    return module


def of_safetensors(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """A mapped file, as torch's own load_state_dict takes it."""
    module = empty()
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    module.load_state_dict(tensors, assign=True)
    return module


def of_diffusers(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """What everybody calls."""
    return FluxTransformer2DModel.from_pretrained(folder, torch_dtype=dtype)


def copied(work: System) -> System:
    """The same, with each weight in memory of its own."""

    def loaded(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
        module = work(folder, dtype)
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()
        return module

    return loaded


SYSTEMS: dict[str, System] = {
    "holdfast": ours,
    "holdfast, small pages": ours_small_pages,
    "safetensors load_file": of_safetensors,
    "safetensors load_file, copied": copied(of_safetensors),
    "diffusers from_pretrained": of_diffusers,
    "diffusers from_pretrained, copied": copied(of_diffusers),
}


def touch(module: torch.nn.Module) -> None:
    """Have every page of every weight in memory."""
    for parameter in module.parameters():
        parameter.detach().view(-1).view(torch.uint8)[:: mmap.PAGESIZE].sum()


def drop_cache(path: Path) -> float:
    """Take the file out of the cache; returns the share of its pages that stayed."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size = path.stat().st_size
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
            first = ctypes.c_char.from_buffer(view)
            pages = system_pages.pages_touched(ctypes.addressof(first), size)
            del first
    return pages / -(-size // mmap.PAGESIZE)


def peak_bytes() -> int | None:
    """The most this process had in RAM since the peak was cleared."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def clear_peak() -> None:
    """The peak is what is there now."""
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5")


def once(work: System, folder: Path, dtype: torch.dtype) -> tuple[float, float, int | None]:
    """Seconds until the module is there, until its weights are, and the peak."""
    gc.collect()
    trim()
    clear_peak()
    before = rss_bytes()
    start = time.perf_counter()
    module = work(folder, dtype)
    there = time.perf_counter() - start
    touch(module)
    ready = time.perf_counter() - start
    peak = peak_bytes()
    return there, ready, None if peak is None else peak - before


def subject(name: str, folder: Path, dtype: torch.dtype, repeats: int, cold: bool) -> list[Row]:
    """All systems in turns, forwards and backwards."""
    file = folder / WEIGHTS
    size = file.stat().st_size
    runs: dict[str, list[tuple[float, float, int | None]]] = {}
    stayed = 0.0
    # What is converted is in memory of its own already.
    systems = [key for key in SYSTEMS if dtype == STORED or "copied" not in key]
    for turn in range(repeats):
        for key in systems if turn % 2 == 0 else systems[::-1]:
            if cold:
                gc.collect()
                stayed = max(stayed, drop_cache(file))
            runs.setdefault(key, []).append(once(SYSTEMS[key], folder, dtype))
    rows = []
    for key, found in sorted(runs.items(), key=lambda item: systems.index(item[0])):
        there, ready = (middle([run[at] for run in found]) for at in (0, 1))
        spread = f"{size / max(r[1] for r in found) / 1e9:.2f} to "
        spread += f"{size / min(r[1] for r in found) / 1e9:.2f}"
        remark = f"{spread}; call returned after {there:.2f} s of {ready:.2f} s"
        if cold:
            remark += f"; at most {stayed:.1%} of the file stayed in the cache"
        rows.append(Row(f"load, {name}", key, size / ready / 1e9, "GB/s", remark))
    for key, found in sorted(runs.items(), key=lambda item: systems.index(item[0])):
        peaks = [run[2] for run in found if run[2] is not None]
        if peaks:
            rows.append(Row(f"peak, {name}", key, max(peaks) / size, "x weights"))
    return rows


def main() -> None:
    """Write the file, load it many times, remove it."""
    parser = argparse.ArgumentParser(description="loading weights, beside safetensors, diffusers")
    default = RUNS / "loading.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--repeats", type=int, help="runs of each system (default 7; quick: 3)")
    parser.add_argument("--folder", type=Path, help="where the file is written (default: as tmp)")
    add_quick(parser)
    args = parser.parse_args()
    args.repeats = args.repeats or (3 if args.quick else 7)
    diffusers.utils.logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="loading-", dir=args.folder))
    try:
        torch.manual_seed(0)
        module = FluxTransformer2DModel(**CONFIG).to(STORED)
        module.save_pretrained(folder)
        del module
        with (folder / WEIGHTS).open("rb") as file:
            os.fsync(file.fileno())  # pages that are to be written cannot be dropped
        rows = subject("cached", folder, STORED, args.repeats, cold=False)
        if not args.quick:
            rows += subject("cache dropped", folder, STORED, args.repeats, cold=True)
            half = torch.float16
            rows += subject("cached, bf16 to fp16", folder, half, args.repeats, cold=False)
        about = {
            "file_bytes": (folder / WEIGHTS).stat().st_size,
            "threads": default_threads(),
            "repeats": args.repeats,
            "quick": args.quick,
            "versions": {
                "torch": torch.__version__,
                "diffusers": diffusers.__version__,
                "safetensors": safetensors.__version__,
            },
        }
    finally:
        shutil.rmtree(folder)
    publish("loading", rows, discover(), args.out, **about)


if __name__ == "__main__":
    main()
