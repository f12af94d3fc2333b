"""From the command to the picture: seconds that a person waits, each time in a new process.

`holdfast run` with several budgets, from a plain and from a packed folder, beside diffusers with
everything on the device, with model offload and with group offload. The clock starts when the
process is started and ends when the picture is in its folder. The built-in model on the CPU; where
there is a GPU, FLUX.1 of full size with random weights, also with a cold page cache.

The systems take turns forwards and then backwards (ABBA), so that none gains from its place.
Device memory is what NVML counts for the process; host memory is the largest resident set.
`python bench_first_picture.py --draw SYSTEM FOLDER ...` is the process of a peer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import Row, add_quick, middle, publish

from holdfast.topology import discover

HERE = Path(__file__).parent
PROMPT = "a handwritten seven"
LOOK_S = 0.02
PEERS = ("resident", "model offload", "group offload")


@dataclass(frozen=True)
class System:
    """One way to draw: its name, and its command line for a picture."""

    name: str
    command: Callable[[Path], list[str]]
    folder: Path


@dataclass
class Runs:
    """What was seen of one system."""

    seconds: list[float] = field(default_factory=list)
    device_gb: list[float] = field(default_factory=list)
    host_gb: list[float] = field(default_factory=list)
    failed: str | None = None


# ---- the systems


def ours(folder: Path, device: str, steps: int, side: int, budget: str | None) -> System:
    """`holdfast run` with a budget."""
    size = ["--height", str(side), "--width", str(side), "--steps", str(steps), "--seed", "1"]
    place = ["--device", device] + (["--budget", budget] if budget else [])

    def command(out: Path) -> list[str]:
        line = ["run", str(folder), "--prompt", PROMPT, *size, *place, "--out", str(out)]
        return [sys.executable, "-m", "holdfast", *line]

    how = "packed folder" if folder.name.endswith("-packed") else "plain folder"
    return System(f"holdfast, {budget or 'no budget'}, {how}", command, folder)


def theirs(way: str, folder: Path, device: str, steps: int, side: int) -> System:
    """diffusers' own pipeline."""

    def command(out: Path) -> list[str]:
        settings = [str(folder), device, str(steps), str(side), str(out)]
        return [sys.executable, __file__, "--draw", way, *settings]

    return System(f"diffusers, {way}", command, folder)


def draw(way: str, folder: str, device: str, steps: str, side: str, out: str) -> None:
    """Draw one picture with diffusers as its documentation does; the process of a peer."""
    torch: Any = importlib.import_module("torch")
    diffusers: Any = importlib.import_module("diffusers")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, torch_dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    if way == "model offload":
        pipe.enable_model_cpu_offload(device=device)
    elif way == "group offload":
        pipe.enable_group_offload(
            onload_device=torch.device(device),
            offload_device=torch.device("cpu"),
            offload_type="leaf_level",
            use_stream=True,
        )
    else:
        pipe.to(device)
    settings = {"height": int(side), "width": int(side), "num_inference_steps": int(steps)}
    longest = min(512, pipe.tokenizer_2.model_max_length)
    generator = torch.Generator().manual_seed(1)
    pipe(
        PROMPT, generator=generator, guidance_scale=3.5, max_sequence_length=longest, **settings
    ).images[0].save(out)


# ---- one run


def measure(system: System, runs: Runs, cold: bool) -> None:
    """Draw once in a new process, and note what it took; a failure is noted too."""
    settle(system.folder, cold)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "picture.png"
        begun = time.perf_counter()
        with (Path(folder) / "said").open("w+") as said:
            child = subprocess.Popen(system.command(out), stdout=said, stderr=said)
            with watching(child.pid) as seen:
                while not out.exists() and child.poll() is None:
                    time.sleep(0.005)
                seconds = time.perf_counter() - begun
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            last = said.read().strip().splitlines()[-1:]
    if child.returncode:
        runs.failed = f"status {child.returncode}: {''.join(last)[:200]}"
        return
    runs.seconds.append(seconds)
    runs.host_gb.append(usage.ru_maxrss * 1024 / 1e9)
    if seen:
        runs.device_gb.append(max(seen) / 1e9)


def settle(folder: Path, cold: bool) -> None:
    """Have the files of a model in the page cache, or out of it."""
    for path in sorted(folder.rglob("*.safetensors")):
        with path.open("rb", buffering=0) as file:
            if cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                block = bytearray(16 << 20)
                while file.readinto(block):
                    pass


@contextlib.contextmanager
def watching(pid: int) -> Iterator[list[int]]:
    """Collects device memory of a process while the block runs; nothing where there is no NVML."""
    seen: list[int] = []
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # noqa: BLE001  no package, no driver, no card
        yield seen
        return
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            mine = [one.usedGpuMemory for one in processes if one.pid == pid]
            # A container may not know its own numbers.
            rest = pynvml.nvmlDeviceGetMemoryInfo(handle).used - before
            seen.append(mine[0] if mine and mine[0] else rest)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


# ---- all of them


def compare(
    subject: str, systems: Sequence[System], rounds: int, remark: str, *, cold: bool = False
) -> list[Row]:
    """Rows of all systems, which take turns forwards and backwards."""
    found = {system.name: Runs() for system in systems}
    for number in range(rounds):
        for system in systems if number % 2 == 0 else systems[::-1]:
            if found[system.name].failed is None:
                measure(system, found[system.name], cold)
    rows = []
    for name, runs in found.items():
        if runs.failed is not None:
            print(f"{subject}: {name} failed: {runs.failed}", file=sys.stderr)
            continue
        rows.append(Row(f"{subject}, command to picture", name, middle(runs.seconds), "s", remark))
        rows.append(Row(f"{subject}, host memory", name, middle(runs.host_gb), "GB", remark))
        if runs.device_gb:
            rows.append(Row(f"{subject}, device memory", name, max(runs.device_gb), "GB", remark))
    return sorted(rows, key=lambda row: row.subject)


def tiny(rounds: int) -> list[Row]:
    """The built-in model on the CPU."""
    folder = HERE.parent / "src" / "holdfast" / "pipeline" / "models" / "tiny-flux"
    if not folder.is_dir():  # installed
        folder = Path(importlib.import_module("holdfast").__path__[0]) / "pipeline/models/tiny-flux"
    device, steps, side = "cpu", 20, 128
    systems = [
        ours(folder, device, steps, side, None),
        theirs("resident", folder, device, steps, side),
    ]
    return compare("tiny-flux", systems, rounds, f"{side}x{side}, {steps} steps, {device}")


def full(args: argparse.Namespace) -> list[Row]:
    """FLUX.1 of full size on the GPU: page cache warm, then cold."""
    folder = Path(args.folder) / "flux"
    packed = folder.with_name("flux-packed")
    if not (folder / "model_index.json").is_file():
        script = HERE / "residency" / "run_flux.py"
        subprocess.run([sys.executable, str(script), "--make", str(folder)], check=True)
    if not packed.exists():
        pack = [sys.executable, "-m", "holdfast", "pack", str(folder), str(packed)]
        subprocess.run(pack, check=True)
    shape = (args.device, args.steps, 1024)
    mine = [
        ours(one, *shape, budget) for budget in args.budgets.split(",") for one in (folder, packed)
    ]
    remark = f"FLUX.1 shape, 1024x1024, {args.steps} steps, {args.device}"
    peers = [theirs(way, folder, *shape) for way in args.peers.split(",") if way]
    rows = compare("page cache warm", [*mine, *peers], args.rounds, remark)
    if args.cold:
        rows += compare("cold disk", [*mine[:2], *peers[:1]], 1, remark, cold=True)
    return rows


def main() -> None:
    """Measure what this machine can."""
    if sys.argv[1:2] == ["--draw"]:
        draw(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/benchmarks/first-picture.json"))
    add_quick(parser)
    add("--device", default="cuda:0")
    add("--folder", help="where FLUX.1's weights are or shall stay (default: one that is removed)")
    add("--budgets", default="6GB,24GB")
    add("--peers", default=",".join(PEERS))
    add("--steps", type=int, default=20)
    add("--rounds", type=int, default=2)
    add("--cold", action="store_true", help="also with the weights out of the page cache")
    args = parser.parse_args()
    rows = tiny(1 if args.quick else 4)
    torch: Any = importlib.import_module("torch")
    importlib.import_module("diffusers")
    if not args.quick and torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > 60e9:
        with contextlib.ExitStack() as stack:
            if args.folder is None:
                temporary = tempfile.TemporaryDirectory(prefix="first-picture-")
                args.folder = stack.enter_context(temporary)
            rows += full(args)
    publish("first-picture", rows, discover(), args.out, quick=args.quick)


if __name__ == "__main__":
    main()
