"""What the pool costs, and what it saves, against the allocators people have.

Four parts. A pair: one allocate and one free, by time on the CPU. Touching: allocate, write every
page, free, with the page faults of it. NumPy: a chain of operations with and without our pool under
NumPy. torch: real code on the CPU (decoding a picture, a training step, a UNet) on torch as it
comes, with two calls of mallopt, with tcmalloc where it is installed, and with our pool.

torch's part runs each system in processes of its own, several times in turn, so that a noisy
machine is noisy for all; the median of the rounds counts, and the results must be
equal bit for bit.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import RUNS, Row, publish

ROUNDS = 5
SYSTEMS = ("holdfast", "stock", "mallopt", "tcmalloc")
WORK = ("vae decode", "mlp training step", "unet")
TCMALLOC = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
)


# ---- a pair


def pair_us(work: Callable[[], object], count: int = 20_000, repeats: int = 9) -> float:
    """Microseconds of CPU time for one call; the best of several, which is the least disturbed."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(count):
            work()
        best = min(best, (time.process_time() - start) / count * 1e6)
    return best


def pairs() -> list[Row]:
    """Allocate and free one block; an empty call is taken off each."""
    import numpy
    import torch

    from holdfast.memory import compiled, core
    from holdfast.memory.memory_pool import MemoryPool
    from holdfast.memory.pool import Pool

    empty = pair_us(lambda: None)
    rows = []
    for size, label in ((4096, "4 KB"), (1 << 20, "1 MB"), (64 << 20, "64 MB")):
        for module, name in ((compiled.load_core(), "compiled"), (core, "python")):
            pool = MemoryPool(resource=Pool(core=module))
            plain = pair_us(lambda pool=pool, size=size: pool.allocate(size)) - empty
            # What it costs to write down the source line of every block.
            log = module.Log(1, str(Path(core.__file__).parent))
            pool.pool.core.watch(log, 0)
            tracked = pair_us(lambda pool=pool, size=size: pool.allocate(size), 5_000) - empty
            pool.pool.core.watch(None, 0)
            rows.append(Row(f"pair, {label}", f"holdfast, {name} core", plain, "µs"))
            rows.append(
                Row(f"pair with its line, {label}", f"holdfast, {name} core", tracked, "µs")
            )
        numpy_us = pair_us(lambda size=size: numpy.empty(size, "u1")) - empty
        torch_us = pair_us(lambda size=size: torch.empty(size, dtype=torch.uint8)) - empty
        rows.append(Row(f"pair, {label}", "numpy.empty", numpy_us, "µs", "untouched memory"))
        rows.append(Row(f"pair, {label}", "torch.empty", torch_us, "µs", "untouched memory"))
    return rows


# ---- touching


def faults() -> int:
    """Page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def touching() -> list[Row]:
    """Allocate, fill and free."""
    import numpy
    import torch

    from holdfast.memory.memory_pool import MemoryPool
    from holdfast.memory.resource import Host

    pools = {
        "holdfast": MemoryPool("cpu"),
        "holdfast, huge pages": MemoryPool("cpu", resource=Host(huge=True)),
    }
    ways: dict[str, Callable[[int], object]] = {
        name: lambda n, pool=pool: pool.allocate(n).array().fill(1) for name, pool in pools.items()
    }
    ways["numpy"] = lambda n: numpy.empty(n, "u1").fill(1)
    ways["torch"] = lambda n: torch.empty(n, dtype=torch.uint8).fill_(1)
    rows = []
    for size in (1, 4, 16, 64, 256):
        for name, way in ways.items():
            count = max(3, 512 // size)
            way(size << 20)
            times, before = [], faults()
            for _ in range(count):
                start = time.process_time()
                way(size << 20)
                times.append((time.process_time() - start) * 1000)
            per = (faults() - before) / count
            median = statistics.median(times)
            rows.append(Row(f"touch {size} MB", name, median, "ms", f"{per:.0f} page faults each"))
    return rows


# ---- NumPy


def chains() -> list[Row]:
    """`(a * b + c).sum()` and friends, whose intermediate results come and go."""
    import numpy

    from holdfast.memory.numpy_handler import numpy_pool

    rows = []
    for side in (512, 2048):
        a = numpy.ones((side, side), "float32")

        def chain(a: Any = a) -> float:
            b = a * 2.0 + a
            c = numpy.sqrt(b) - a / 3.0
            return float((c * b + a).sum())

        expected = chain()
        times: dict[str, list[float]] = {"holdfast": [], "stock": []}
        for _ in range(ROUNDS):
            times["stock"].append(pair_us(chain, 8, 3))
            with numpy_pool():
                times["holdfast"].append(pair_us(chain, 8, 3))
                assert chain() == expected
        rows += [
            Row(f"numpy chain {side}x{side}", name, statistics.median(found) / 1000, "ms")
            for name, found in times.items()
        ]
    return rows


# ---- torch


def worker(system: str) -> None:
    """Run the torch code under one system, and print times and what came out as JSON."""
    if system == "mallopt":  # never mmap, never trim: what glibc can do by itself
        libc = ctypes.CDLL(ctypes.util.find_library("c"))
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
    import torch

    from holdfast.memory import install_torch_pool
    from holdfast.topology import amx

    amx.keep_from_crashing()
    torch.manual_seed(0)
    if system == "holdfast":
        install_torch_pool()
    found = {}
    for name, work in torch_work(torch).items():
        work()
        work()
        times, before = [], faults()
        for _ in range(3 if name == "vae decode" else 9):
            start = time.perf_counter()
            out = work()
            times.append(time.perf_counter() - start)
        data = out.detach().contiguous().numpy().tobytes()
        found[name] = {
            "seconds": statistics.median(times),
            "faults": (faults() - before) // len(times),
            "result": hashlib.sha256(data).hexdigest(),
        }
    print(json.dumps(found))


def torch_work(torch: Any) -> dict[str, Callable[[], Any]]:
    """Real code: SDXL's decoder at 256 pixels, a small UNet, a step of Adam on 128 rows."""
    from diffusers import AutoencoderKL, UNet2DConditionModel

    vae = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
    ).eval()
    latents = torch.randn(1, 4, 32, 32)
    unet = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128, 256),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
        attention_head_dim=8,
    ).eval()
    noise, text = torch.randn(2, 4, 32, 32), torch.randn(2, 77, 256)
    mlp = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096),
        torch.nn.GELU(),
        torch.nn.Linear(4096, 4096),
        torch.nn.GELU(),
        torch.nn.Linear(4096, 1024),
    )
    optimizer = torch.optim.Adam(mlp.parameters(), 1e-3)
    data = torch.randn(128, 1024)

    @torch.no_grad()
    def decode() -> Any:
        return vae.decode(latents).sample

    @torch.no_grad()
    def denoise() -> Any:
        return unet(noise, 500, text).sample

    def train() -> Any:
        optimizer.zero_grad()
        loss = mlp(data).square().mean()
        loss.backward()
        optimizer.step()
        return torch.cat([loss.reshape(1), mlp[0].weight[0]])

    return dict(zip(WORK, (decode, train, denoise), strict=True))


def torch_rows() -> tuple[list[Row], dict[str, Any]]:
    """Every system in turn, several rounds."""
    library = next((path for path in TCMALLOC if Path(path).exists()), None)
    systems = [s for s in SYSTEMS if s != "tcmalloc" or library]
    found: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for number in range(ROUNDS):
        for system in systems:
            print(f"torch, round {number + 1} of {ROUNDS}: {system}", file=sys.stderr)
            environ = dict(os.environ)
            if system == "tcmalloc" and library:
                environ["LD_PRELOAD"] = library
            command = [sys.executable, __file__, "--worker", system]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            found[system].append(json.loads(done.stdout))
    rows, equal = [], {}
    for name in WORK:
        equal[name] = len({r[name]["result"] for runs in found.values() for r in runs}) == 1
        for system in systems:
            runs = [r[name] for r in found[system]]
            median = statistics.median(r["seconds"] for r in runs) * 1000
            remark = f"{statistics.median(r['faults'] for r in runs):.0f} page faults each"
            rows.append(Row(f"torch, {name}", system, median, "ms", remark))
    return rows, {"results_equal_bit_for_bit": equal, "tcmalloc": library, "rounds": ROUNDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = RUNS / "pool.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    from holdfast.base.config import Config
    from holdfast.topology import discover

    rows = [*pairs(), *touching(), *chains()]
    more, about = torch_rows()
    machine = discover(config=Config.load(probes=("linux",)))
    publish("pool", rows + more, machine, args.out, **about)
    if not all(about["results_equal_bit_for_bit"].values()):
        raise SystemExit("the results are not equal")


if __name__ == "__main__":
    main()
