"""What the training scripts share: arguments, log, averages of weights, learning rate, saving.

Promise: a saved folder holds float16 weights and says float32 in its text encoders' configs, so
that it loads in the type that is asked for, and in float32 when none is.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

Size = tuple[int, ...]


@dataclass(frozen=True)
class Asked:
    """The command line of a training script."""

    out: Path
    device: torch.device
    seed: int
    steps: int
    seconds: float | None
    log: Path | None


def arguments(about: str, steps: int) -> Asked:
    """Read the command line; `steps` is the number of steps that made the shipped weights."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps, help="0: untrained weights")
    parser.add_argument("--seconds", type=float, help="fewer steps, as many as this allows (GPU)")
    parser.add_argument("--log", type=Path, help="also write the progress lines here")
    got = parser.parse_args()
    return Asked(got.out, torch.device(got.device), got.seed, got.steps, got.seconds, got.log)


class Log:
    """Progress lines with the seconds since the start, on the terminal and in a file."""

    def __init__(self, path: Path | None) -> None:
        self.start = time.monotonic()
        self.file = path.open("w", encoding="utf-8") if path else None

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.start:7.1f} s  {text}\n"
        for stream in (sys.stdout, self.file):
            if stream:
                stream.write(line)
                stream.flush()

    def header(self, asked: Asked) -> None:
        """Machine, date, versions, seed."""
        import diffusers
        import transformers

        machine = platform.machine()
        if asked.device.type == "cuda":
            machine = "one " + torch.cuda.get_device_name(asked.device)
        self.say(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {machine}")
        self.say(
            f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"diffusers {diffusers.__version__}, transformers {transformers.__version__}"
        )
        self.say(f"seed {asked.seed}, steps {asked.steps}")


class Average:
    """An exponential moving average of modules' weights."""

    def __init__(self, modules: Iterable[torch.nn.Module], decay: float) -> None:
        live = list(modules)
        self.kept = [copy.deepcopy(module).eval().requires_grad_(False) for module in live]
        self.decay = decay
        self.mean = [p for module in self.kept for p in module.parameters()]
        self.newest = [p for module in live for p in module.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.mean, [p.detach() for p in self.newest], 1 - self.decay)


class Trainer:
    """AdamW with a warm-up and a cosine, over a fixed number of steps.

    On a GPU a step is recorded once for every size of picture, as a CUDA graph: models as small
    as these spend most of a step's time in starting kernels.  So a step must not copy between
    host and device, and takes its chance from torch's generator.
    """

    def __init__(
        self,
        name: str,
        modules: list[torch.nn.Module],
        steps: int,
        peak: float,
        log: Log,
        decay: float = 0.01,
        seconds: float | None = None,
    ) -> None:
        self.seconds = seconds
        self.name, self.steps, self.peak, self.log = name, steps, peak, log
        self.weights = [p for module in modules for p in module.parameters() if p.requires_grad]
        self.on_gpu = self.weights[0].is_cuda
        self.rate = torch.zeros((), device=self.weights[0].device)
        self.optim = torch.optim.AdamW(
            self.weights,
            lr=self.rate if self.on_gpu else 0.0,
            betas=(0.9, 0.98),
            weight_decay=decay,
            fused=self.on_gpu,
            capturable=self.on_gpu,
        )
        self.average = Average(modules, min(0.999, 1 - 10 / max(steps, 20)))

    def run(self, loss_of: Callable[[Size], torch.Tensor], sizes: list[Size]) -> None:
        """One step for each of `sizes`; a progress line every twentieth part of the way."""
        doers = {size: self._doer(loss_of, size) for size in dict.fromkeys(sizes)}
        if self.on_gpu:
            self.log.say(f"{self.name}: recorded {len(doers)} graphs")
            sizes = self._afford(doers, sizes)
        for step, size in enumerate(sizes):
            self._set_rate(step)
            loss = doers[size]()
            if step % max(1, self.steps // 20) == 0 or step == self.steps - 1:
                self.log.say(f"{self.name} step {step} of {self.steps}, loss {loss.item():.5f}")

    def _afford(self, doers: dict, sizes: list[Size]) -> list[Size]:
        """As many of `sizes` as the allowed seconds are enough for, by trying some at rate 0."""
        if self.seconds is None:
            return sizes
        torch.cuda.synchronize()
        start, some = time.monotonic(), sizes[:40]
        for size in some:
            doers[size]()
        torch.cuda.synchronize()
        each = (time.monotonic() - start) / len(some)
        self.steps = min(self.steps, int(self.seconds / each))
        self.log.say(f"{self.name}: {1000 * each:.1f} ms a step, {self.steps} steps")
        return sizes[: self.steps]

    def _set_rate(self, step: int) -> None:
        warm = max(1, min(300, self.steps // 10))
        fall = 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        rate = self.peak * min((step + 1) / warm, 1.0) * max(fall, 0.01)
        if self.on_gpu:
            self.rate.fill_(rate)
        else:
            self.optim.param_groups[0]["lr"] = rate

    def _doer(self, loss_of: Callable, size: Size) -> Callable[[], torch.Tensor]:
        if not self.on_gpu:
            return lambda: self._descend(loss_of(size))
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # at rate 0: lets libraries choose kernels, changes no weight
                self._descend(loss_of(size))
        torch.cuda.current_stream().wait_stream(aside)
        self.optim.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._descend(loss_of(size))
        return lambda: graph.replay() or loss

    def _descend(self, loss: torch.Tensor) -> torch.Tensor:
        """One step downhill."""
        self.optim.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optim.step()
        self.average.update()
        return loss.detach()


def prepare(asked: Asked) -> None:
    """Fix the seed and choose fast arithmetic."""
    torch.manual_seed(asked.seed)
    torch.set_float32_matmul_precision("high")
    # cuDNN's attention fails in the backward pass for heads of 32 (torch 2.11).
    torch.backends.cuda.enable_cudnn_sdp(False)


def mixed(device: torch.device) -> torch.autocast:
    """bfloat16 arithmetic on a GPU, plain float32 elsewhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def save(pipe, folder: Path) -> None:
    """Write a pipeline in float16, with paths and types in its configs made neutral."""
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.to("cpu", torch.float16)
    pipe.save_pretrained(folder, safe_serialization=True)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)
    for path in sorted(folder.glob("text_encoder*/config.json")):
        with edited(path) as config:
            config["dtype"] = "float32"
    with edited(folder / "model_index.json") as index:
        index.pop("_name_or_path", None)
        for name, part in index.items():
            if name.startswith("tokenizer") and part[1] == "T5Tokenizer":
                part[1] = "T5TokenizerFast"  # what the large models say; the same class


@contextmanager
def edited(path: Path) -> Iterator[dict]:
    """A JSON file as a dictionary that is written back."""
    data = json.loads(path.read_text())
    yield data
    path.write_text(json.dumps(data, indent=2) + "\n")


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def count_weights(modules: dict[str, torch.nn.Module]) -> str:
    """One line of how many weights each part has."""
    parts = {name: sum(p.numel() for p in one.parameters()) for name, one in modules.items()}
    return ", ".join(f"{name} {count:,}" for name, count in parts.items())


def report_score(folder: Path, log: Log, device: torch.device) -> None:
    """Load the written folder as a user does, and let the judge say how well it draws."""
    from diffusers import DiffusionPipeline
    from judge import options_of, score

    pipe = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32).to(device)
    pipe.set_progress_bar_config(disable=True)
    right, pictures = score(pipe, **options_of(folder))
    log.say(f"{right} of {len(pictures)} pictures recognised, {size_bytes(folder):,} bytes")
