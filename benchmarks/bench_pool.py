"""What the pool costs, and what it saves, against the allocators people have.

Four parts. A pair: one allocate and one free, by time on the CPU. Touching: allocate, write every
page, free, with the page faults of it. NumPy: a chain of operations with and without our pool under
NumPy. torch: real code on the CPU (decoding a picture, a training step, a UNet) on torch as it
comes, with two calls of mallopt, and with tcmalloc where it is installed; each in turn with our
pool in the same process, run by run, so that a noisy machine is noisy for both. The median of the
ratios of these pairs counts, and the results must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report import RUNS, Measured, Row, add_quick, best_us, middle, publish

BASELINES = ("stock", "mallopt", "tcmalloc")
ROUNDS = {"vae decode": 5, "mlp training step": 11, "unet": 7}
QUICK_WORK = "mlp training step,unet"
QUICK_BASELINES = ("stock", "tcmalloc")
TCMALLOC = (
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
)


# ---- a pair


def pair_us(work: Callable[[], object], count: int = 2_000, repeats: int = 150) -> Measured:
    """Microseconds of CPU time for one call."""
    return best_us(work, count, repeats)


def pairs(repeats: int = 150) -> list[Row]:
    """Allocate and free one block; an empty call is taken off each."""
    import numpy
    import torch

    from holdfast.memory.core import native_build, pool_core
    from holdfast.memory.pools.memory_pool import MemoryPool
    from holdfast.memory.pools.pool import Pool

    cost = functools.partial(pair_us, repeats=repeats)
    empty = cost(lambda: None)
    rows = []
    for size, label in ((4096, "4 KB"), (1 << 20, "1 MB"), (64 << 20, "64 MB")):
        for module, name in ((native_build.load_core(), "compiled"), (pool_core, "python")):
            pool = MemoryPool(resource=Pool(core=module))
            work = lambda pool=pool, size=size: pool.allocate(size)  # noqa: E731
            plain = cost(work) - empty
            # What it costs to write down the source line of every block.
            log = module.Log(1, str(Path(pool_core.__file__).parents[1]))
            pool.pool.core.watch(log, 0)
            tracked = pair_us(work, 500, 2 * repeats) - empty
            pool.pool.core.watch(None, 0)
            rows.append(Row(f"pair, {label}", f"holdfast, {name} core", plain, "µs"))
            rows.append(
                Row(f"pair with its line, {label}", f"holdfast, {name} core", tracked, "µs")
            )
        numpy_us = cost(lambda size=size: numpy.empty(size, "u1")) - empty
        torch_us = cost(lambda size=size: torch.empty(size, dtype=torch.uint8)) - empty
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

    from holdfast.memory.pools.memory_pool import MemoryPool
    from holdfast.memory.resources.resource import Host

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
        times: dict[str, list[float]] = {name: [] for name in ways}
        seen = dict.fromkeys(ways, 0)
        count = max(5, 512 // size)
        for turn in range(count + 1):
            for name, way in ways.items():
                before, start = faults(), time.process_time()
                way(size << 20)
                if turn:  # the first one warms up
                    times[name].append((time.process_time() - start) * 1000)
                    seen[name] += faults() - before
        for name, found in times.items():
            remark = f"{seen[name] / count:.0f} page faults each"
            rows.append(Row(f"touch {size} MB", name, middle(found), "ms", remark))
    return rows


# ---- NumPy


def chains() -> list[Row]:
    """`(a * b + c).sum()` and friends, whose intermediate results come and go."""
    import numpy

    from holdfast.memory.hooks.numpy_handler import numpy_pool

    rows = []
    for side in (512, 2048):
        a = numpy.ones((side, side), "float32")

        def chain(a: Any = a) -> float:
            b = a * 2.0 + a
            c = numpy.sqrt(b) - a / 3.0
            return float((c * b + a).sum())

        expected = chain()
        times: dict[str, list[float]] = {"holdfast": [], "stock": []}
        for _ in range(5):
            times["stock"].append(pair_us(chain, 4, 4))
            with numpy_pool():
                times["holdfast"].append(pair_us(chain, 4, 4))
                assert chain() == expected
        rows += [
            Row(f"numpy chain {side}x{side}", name, middle(found) / 1000, "ms")
            for name, found in times.items()
        ]
    return rows


# ---- torch


def worker(baseline: str, only: str | None, rounds: int | None) -> None:
    """Run the torch code on one baseline and on our pool in turn; times and results as JSON."""
    if baseline == "mallopt":  # never mmap, never trim: what glibc can do by itself
        libc = ctypes.CDLL(ctypes.util.find_library("c"))
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
    from holdfast.topology import amx

    amx.disable_broken_amx()
    import torch

    from holdfast.memory import install_torch_pool, uninstall_torch_pool

    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, (work, result) in torch_work(torch).items():
        if only is not None and name not in only.split(","):
            continue
        pairs: list[dict[str, Any]] = []
        for number in range((rounds or ROUNDS[name]) + 1):
            pair = {}
            order = (baseline, "holdfast") if number % 2 else ("holdfast", baseline)
            for system in order:
                (install_torch_pool if system == "holdfast" else uninstall_torch_pool)()
                pair[system] = timed(work)
            if number:  # the first pair warms both up
                pairs.append(pair)
        outputs = []
        for change in (uninstall_torch_pool, install_torch_pool):
            change()
            outputs.append(result().detach().contiguous().numpy().tobytes())
        found[name] = {"pairs": pairs, "equal": outputs[0] == outputs[1]}
    print(json.dumps(found))


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds by the wall and of the processor, and page faults of one call after one to settle."""
    work()
    before, wall, cpu = faults(), time.perf_counter(), time.process_time()
    work()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "faults": faults() - before,
    }


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
        return loss

    def trained() -> Any:
        """The same step from the same weights: what it makes of them."""
        copy = torch.nn.Linear(1024, 1024)
        with torch.no_grad():
            copy.weight.copy_(torch.linspace(-1, 1, 1 << 20).reshape(1024, 1024))
            copy.bias.zero_()
        inner = torch.optim.Adam(copy.parameters(), 1e-3)
        for _ in range(3):
            inner.zero_grad()
            copy(data).square().mean().backward()
            inner.step()
        return copy.weight

    return dict(zip(ROUNDS, ((decode, decode), (train, trained), (denoise, denoise)), strict=True))


def torch_rows(
    baselines: Sequence[str], only: str | None, rounds: int | None
) -> tuple[list[Row], dict[str, Any]]:
    """Each baseline in a process of its own, in turn with our pool."""
    library = next((path for path in TCMALLOC if Path(path).exists()), None)
    rows, about = [], {"tcmalloc": library and Path(library).name, "paired": {}, "equal": {}}
    for baseline in baselines:
        if baseline == "tcmalloc" and not library:
            continue
        print(f"torch against {baseline}", file=sys.stderr)
        environ = dict(os.environ)
        if baseline == "tcmalloc" and library:
            environ["LD_PRELOAD"] = library
        command = [sys.executable, __file__, "--worker", baseline]
        command += ["--only", only] if only else []
        command += ["--rounds", str(rounds)] if rounds else []
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        for name, found in json.loads(done.stdout).items():
            subject = f"{name}, torch on {baseline}"
            pairs = found["pairs"]
            gains, cpu_gains = (
                [pair[baseline][clock] / pair["holdfast"][clock] for pair in pairs]
                for clock in ("seconds", "cpu_seconds")
            )
            about["paired"][subject] = {
                "median": statistics.median(gains),
                "rounds": sorted(round(gain, 3) for gain in gains),
                "cpu_median": statistics.median(cpu_gains),
                "cpu_rounds": sorted(round(gain, 3) for gain in cpu_gains),
            }
            about["equal"][subject] = found["equal"]
            for system in ("holdfast", baseline):
                median = middle([pair[system]["seconds"] for pair in pairs]) * 1000
                per = statistics.median(pair[system]["faults"] for pair in pairs)
                remark = f"{per:.0f} page faults each"
                if system == "holdfast":
                    remark += f"; {statistics.median(gains):.2f}x by pairs of runs"
                rows.append(Row(subject, system, median, "ms", remark))
    return rows, about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = RUNS / "pool.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--only", help=f"this work of torch's alone: {', '.join(ROUNDS)}")
    parser.add_argument("--against", choices=BASELINES, help="this baseline of torch's alone")
    parser.add_argument("--rounds", type=int, help="pairs of torch's runs (default 5 to 11)")
    parser.add_argument("--worker", choices=BASELINES, help=argparse.SUPPRESS)
    add_quick(parser)
    args = parser.parse_args()
    if unknown := set(args.only.split(",") if args.only else ()) - set(ROUNDS):
        parser.error(f"{min(unknown)!r} is none of {', '.join(ROUNDS)}")
    if args.worker:
        worker(args.worker, args.only, args.rounds)
        return
    from holdfast.base.config import Config
    from holdfast.topology import discover

    repeats = 25 if args.quick else 150
    rows = [] if args.only or args.against else [*pairs(repeats), *touching(), *chains()]
    baselines = [args.against] if args.against else QUICK_BASELINES if args.quick else BASELINES
    only, rounds = args.only, args.rounds
    if args.quick:
        only, rounds = only or QUICK_WORK, rounds or 3
    more, about = torch_rows(baselines, only, rounds)
    machine = discover(config=Config.load(probes=("linux",)))
    publish("pool", rows + more, machine, args.out, quick=args.quick, **about)
    if not all(about["equal"].values()):
        raise SystemExit("the results are not equal")


if __name__ == "__main__":
    main()
