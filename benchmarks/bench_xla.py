"""Models on XLA beside torch and plain torchax, in one run.

On an NVIDIA card: one step of FLUX.1's shape (11.9e9 random weights, bf16, 4096 + 512 tokens)
through JAX, in torch eager and in torch.compile; attention alone; and whether what runs there is
right. On a CPU: tiny networks, and the first call of a Wan with forty blocks in a first and a
second process. Each part has a process of its own; torch and JAX draw the same weights from a seed.

Time: the median of `--steps` steps, each waited for, after `--warm` others. `--rounds 2` has torch
and JAX in the order A B B A. `--tiny` tries every part on any machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from report import RUNS, Row, add_quick, middle, publish
from xla.working import Outcome, Settings, outcome

from holdfast.topology import Topology, discover

PARTS = {
    "cuda": ("agreement", "attention", "flux"),
    "cpu": ("networks", "compile"),
}
QUICK = {"cuda": ("attention",), "cpu": ("networks",)}
QUICK_NETWORKS = ("diffusers:FluxTransformer2DModel", "diffusers:UNet2DConditionModel")
SCHEMES = ("unrolled", "unmerged", "scan", "slices", "kept", "xla")
FIRST_CALLS = ("scan", "unrolled", "torchax")
FLUX_NAMES = {
    "unrolled": "Holdfast",
    "unmerged": "Holdfast, products not merged",
    "scan": "Holdfast, blocks scanned",
    "slices": "Holdfast, blocks scanned, slices fused",
    "kept": "Holdfast, blocks scanned, from a file",
    "xla": "Holdfast, blocks scanned, XLA's own attention",
    "compile": "torch.compile",
    "eager": "torch eager",
}


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one run."""
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    default = RUNS / "xla.json"
    every = [part for parts in PARTS.values() for part in parts]
    parser.add_argument("--device", choices=sorted(PARTS), help="default: cuda where there is one")
    parser.add_argument("--parts", type=_names(every), help="default: those for the device")
    parser.add_argument("--steps", type=_positive, help="timed steps (default 20; quick: 10)")
    parser.add_argument("--warm", type=int, default=5, help="steps before them")
    parser.add_argument("--rounds", type=_positive, default=1, help="of FLUX.1, to and fro")
    parser.add_argument("--flux", type=_names(FLUX_NAMES), default=list(FLUX_NAMES))
    parser.add_argument(
        "--with", dest="earlier", type=Path, help="a run whose other parts are kept, with its date"
    )
    parser.add_argument("--kernels", action="store_true", help="where a step's time goes")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the benchmark")
    parser.add_argument("--part-limit", type=float, default=240.0, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    add_quick(parser)
    found = parser.parse_args(arguments)
    found.steps = found.steps or (10 if found.quick else 20)
    return found


def _names(known: Any) -> Any:
    def names(text: str) -> list[str]:
        wanted = [name for name in text.split(",") if name]
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return wanted

    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1, got {text!r}")
    return number


class Run:
    """Parts of one run, what they gave and which failed."""

    def __init__(self, settings: Settings, limit_s: float) -> None:
        self.settings, self.limit_s = settings, limit_s
        self.rows: list[Row] = []
        self.figures: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def part(self, name: str, settings: Settings | None = None, label: str = "") -> Any:
        """The figures of a part, None where it failed."""
        done: Outcome = outcome(name, settings or self.settings, self.limit_s)
        label = label or name
        print(f"{label}: {done.error or 'done'} ({done.took_s:.1f} s)", flush=True)
        if done.error is not None:
            self.failed[label] = done.error
        return done.figures

    def keep(self, earlier: dict[str, Any]) -> dict[str, Any]:
        """Take what an earlier run has and this one has not; what that is, and of when."""
        kept = {n: one for n, one in earlier["figures"].items() if n not in self.figures}
        subjects = {row.subject for row in self.rows}
        rows = [row for row in earlier["rows"] if row["subject"] not in subjects]
        self.figures |= kept
        for row in rows:
            self.rows.append(Row(**{name: one for name, one in row.items() if name != "ratio"}))
        names = sorted({*kept, *(row["subject"] for row in rows)})
        before = {name: one for name, one in earlier.items() if name == "earlier"}
        return {"date": earlier["date"], "kept": names} | before

    # ---- parts

    def agreement(self, _: argparse.Namespace) -> None:
        """Errors, not times."""
        found = self.part("agreement") or {}
        for kind, errors in found.items():
            self.figures[f"agreement, {kind}"] = errors
            for name, error in errors.items():
                if isinstance(error, str):
                    self.failed[f"agreement, {name}"] = error

    def attention(self, _: argparse.Namespace) -> None:
        """Ours over torch's, subject by subject."""
        found = self.part("attention_alone") or {}
        names = {"ours": "Holdfast", "torch": "torch SDPA", "xla": "Holdfast, XLA's own"}
        names["graph"] = "torch SDPA, CUDA graph"
        self.figures["attention"] = found
        kinds = {"median_ms": "", "row_ms": ", 57 in a row", "chained_ms": ", 57 in one program"}
        for (subject, systems), (kind, words) in itertools.product(found.items(), kinds.items()):
            for key, name in names.items():
                one = systems.get(key, {})
                if kind not in one:
                    continue
                remark = f"error {one['error']:.1e}" if "error" in one else ""
                if kind == "chained_ms" and "device_ms" in one:
                    remark = f"kernels {one['device_ms']:.4f} ms"
                self.rows.append(Row(f"attention, {subject}{words}", name, one[kind], "ms", remark))

    def flux(self, args: argparse.Namespace) -> None:
        """torch and JAX in turns."""
        sides = {
            "flux_torch": tuple(one for one in ("eager", "compile") if one in args.flux),
            "flux_jax": tuple(one for one in SCHEMES if one in args.flux),
        }
        found: dict[str, list[dict[str, Any]]] = {}
        for i in range(args.rounds):
            order = list(sides) if i % 2 == 0 else list(reversed(sides))
            for side in order:
                label = f"{side}, round {i + 1}"
                given = replace(self.settings, variants=sides[side])
                figures = self.part(side, given, label) if sides[side] else None
                for name, value in (figures or {}).items():
                    found.setdefault(name, []).append(value)
        self._tell_flux(found, args.kernels)

    def _tell_flux(self, found: dict[str, list[Any]], with_kernels: bool) -> None:
        for key, name in FLUX_NAMES.items():
            rounds = found.get(key, [])
            times = [time for one in rounds for time in one["times_ms"]]
            if times:
                self.rows.append(Row("FLUX.1 step", name, middle(times), "ms", _told(rounds)))
        if with_kernels:
            rounds = {key: found[key] for key in FLUX_NAMES if key in found}
            lists = {key: [one.pop("kernels", []) for one in ones] for key, ones in rounds.items()}
            self.figures["flux, kernels"] = lists
        self.figures["flux"] = found

    def networks(self, args: argparse.Namespace) -> None:
        """Tiny ones, on a CPU."""
        few = replace(self.settings, variants=QUICK_NETWORKS) if args.quick else None
        found = self.part("tiny_models", few) or {}
        names = {"ours": "Holdfast", "torch": "torch eager", "torchax": "torchax"}
        names["placed"] = "Holdfast, tensors in and out"
        for network, systems in found.items():
            for key, name in names.items():
                one = systems[key]
                label = f"{network.rpartition(':')[2]}, {name}"
                if "median_ms" not in one:
                    self.failed[label] = one["error"]
                    continue
                subject = f"tiny {network.rpartition(':')[2]}"
                self.rows.append(Row(subject, name, middle(one["times_ms"]), "ms", _told([one])))
        self.figures["networks"] = found

    def compile(self, _: argparse.Namespace) -> None:
        """The first call, in two processes that share a folder."""
        found: dict[str, Any] = {}
        for variant in FIRST_CALLS:
            folder = Path(self.settings.folder) / f"compile-{variant}"
            folder.mkdir()
            given = replace(self.settings, variants=(variant,), folder=str(folder), steps=3)
            for process in ("first", "second"):
                label = f"{variant}, {process} process"
                found[label] = self.part("compile_wan", given, label)
        self.figures["compile"] = found
        names = {"scan": "Holdfast", "unrolled": "Holdfast, unrolled", "torchax": "torchax"}
        for process in ("first", "second"):
            for variant, name in names.items():
                one = found[f"{variant}, {process} process"]
                if one is not None:
                    remark = f"{one['first_cpu_s']:.1f} s of CPU, error {one['error']:.1e}"
                    subject = f"first call of Wan, {one['blocks']} blocks, {process} process"
                    self.rows.append(Row(subject, name, one["first_s"], "s", remark))


def _told(rounds: list[dict[str, Any]]) -> str:
    """Beside the time: what came before the first step, and how far from torch."""
    words = []
    for key, text in (("trace_s", "trace"), ("compile_s", "compile"), ("first_s", "first call")):
        seconds = [one[key] for one in rounds if one.get(key) is not None]
        if seconds:
            words.append(f"{text} {median(seconds):.1f} s")
    for key in ("difference", "error"):
        parts = [one[key] for one in rounds if one.get(key) is not None]
        if parts:
            words.append(f"{key} {max(parts):.1e}")
    return ", ".join(words)


def device_of(args: argparse.Namespace, machine: Topology) -> str:
    """The device that was asked for, or the card that is there."""
    has_card = any("nvidia" in (gpu.vendor or "").lower() for gpu in machine.gpus)
    return args.device or ("cuda" if has_card else "cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and write."""
    args = options(arguments)
    machine = discover()
    device = device_of(args, machine)
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        given = Settings(device, args.tiny, args.steps, args.warm, folder, kernels=args.kernels)
        run = Run(given, args.part_limit)
        for part in args.parts or (QUICK if args.quick else PARTS)[device]:
            getattr(run, part)(args)
    told = ("tiny", "steps", "warm", "rounds")
    settings = {"device": device} | {name: getattr(args, name) for name in told}
    settings["load_average"] = [*loads, os.getloadavg()[0]]  # before and after
    settings["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    more: dict[str, Any] = {"quick": args.quick, "settings": settings}
    more |= {"figures": run.figures, "failed": run.failed}
    if args.earlier is not None:
        more["earlier"] = run.keep(json.loads(args.earlier.read_text()))
    publish("xla", run.rows, machine, args.out, **more)


if __name__ == "__main__":
    main()
