"""`torch.device("holdfast")` beside torch's CPU and tinygrad's torch backend, in one run.

Three parts. `overhead`: what an op on 16 numbers costs, in pure Python, with the C++ shim, and in
tinygrad's torch backend (a process each, torch's CPU measured in every one). `models`: models of
real sizes, forward and forward + backward, device and CPU run by run in turn, and how far the
results are apart. `compiled`: chains of pointwise ops and small networks under
`torch.compile(backend="holdfast")`, eager on the device and on torch's CPU.

tinygrad's torch backend is in its repository, not in its release: `--tinygrad FOLDER` is a checkout
(with `pip install tinygrad` and a compiler). Without one its own tensors are measured.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from report import RUNS, Measured, Row, add_quick, middle, publish

HERE = Path(__file__).parent / "torch_device"
PARTS = ("overhead", "models", "compiled")
QUICK_MODELS = "resnet-50"
TARGETS_US = {"python": 6.5, "shim": 2.7}
TARGET_RATIO = 2.5
COMPILED = {
    "holdfast, compiled": "compiled_us",
    "torch CPU": "torch_us",
    "holdfast, not compiled": "device_us",
    "holdfast, compiled, tensors on the CPU": "compiled_cpu_us",
}


def options() -> argparse.Namespace:
    """The options of one run."""
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    default = RUNS / "torch-device.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON file (default {default})")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--models", default="", help="names of models; all when not given")
    parser.add_argument("--repeats", type=int, help="runs of each model (default 5; quick: 3)")
    parser.add_argument("--tinygrad", type=Path, help="a checkout of tinygrad")
    add_quick(parser)
    given = parser.parse_args()
    given.repeats = given.repeats or (3 if given.quick else 5)
    given.models = given.models or (QUICK_MODELS if given.quick else "")
    unknown = set(given.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"{min(unknown)!r} is none of {', '.join(PARTS)}")
    return given


# ---- overhead


def child(arguments: list[str], shim: str = "off") -> dict[str, Any] | None:
    """What a process of its own measured; None, with a line that says why, where it cannot."""
    environment = {**os.environ, "HOLDFAST_TORCH_SHIM": shim, "OMP_NUM_THREADS": "1"}
    if arguments[0] != "holdfast":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # one device of this kind in a process
    done = subprocess.run(
        [sys.executable, str(HERE / "overhead.py"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"left out: {' '.join(arguments)} (shim {shim}): {reason}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def overhead(tinygrad: Path | None) -> list[Row]:
    """Microseconds of small ops on every device."""
    ways = {
        "holdfast, Python": child(["holdfast"]),
        "holdfast, shim": child(["holdfast"], shim="on"),
    }
    if tinygrad is not None:
        ways["tinygrad's torch backend"] = child(["tiny", str(tinygrad)])
    ways["tinygrad's own tensors"] = child(["tinygrad"])
    rows = []
    first: Any = ways["holdfast, Python"]
    for op in first["ops"] if first else ():
        for system, found in ways.items():
            if found is None or op not in found["ops"]:
                continue
            if system == "holdfast, shim" and not found.get("shim"):
                continue
            rows.append(
                Row(f"{op}, 16 numbers", system, found["ops"][op]["us"], "µs", _target(op, system))
            )
            if op in found.get("realised", {}):
                us = found["realised"][op]["us"]
                rows.append(Row(f"{op}, 16 numbers", f"{system}, realised", us, "µs"))
        rows.append(Row(f"{op}, 16 numbers", "torch CPU", first["ops"][op]["cpu_us"], "µs"))
    return rows


def _target(op: str, system: str) -> str:
    way = system.rpartition(" ")[2].lower()
    return f"at most {TARGETS_US[way]} wanted" if op == "add" and way in TARGETS_US else ""


# ---- models


def models(wanted: list[str], repeats: int) -> list[Row]:
    """Milliseconds of models on the device and on the CPU, and how far the results are apart."""
    import torch

    importlib.import_module("holdfast.torch")
    made = importlib.import_module("torch_device.models")
    rows = []
    for name, build in made.MODELS.items():
        if wanted and name not in wanted:
            continue
        module, inputs = build()
        theirs = _runner(module, inputs, made.result)
        put: Any = lambda v: v.to("holdfast") if isinstance(v, torch.Tensor) else v  # noqa: E731
        there = {key: put(value) for key, value in inputs.items()}
        ours = _runner(copy.deepcopy(module).to("holdfast"), there, made.result)
        for backward, what in ((False, "forward"), (True, "forward + backward")):
            apart = _apart(ours(backward), theirs(backward))
            runs = partial(ours, backward), partial(theirs, backward)
            mine, cpu = _in_turn(*runs, repeats)
            subject = f"{name}, {what}"
            remark = f"results {apart:.1e} apart; at most {TARGET_RATIO} times wanted"
            rows += [
                Row(subject, "holdfast, Python", mine, "ms", remark),
                Row(subject, "torch CPU", cpu, "ms"),
            ]
            print(f"{subject}: {mine:.1f} ms, torch CPU {cpu:.1f} ms", file=sys.stderr)
    return rows


def _runner(module: Any, inputs: Any, result: Callable[[Any], Any]) -> Callable[[bool], Any]:
    import torch

    def run(backward: bool) -> Any:
        with torch.set_grad_enabled(backward):
            out = result(module(**inputs))
            if backward:
                module.zero_grad(set_to_none=True)
                out.square().mean().backward()
        return out.detach()

    return run


def _apart(ours: Any, theirs: Any) -> float:
    """The greatest difference, as a share of the greatest value."""
    return float((ours.cpu() - theirs).abs().max() / theirs.abs().max())


def _in_turn(
    ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int
) -> tuple[Measured, Measured]:
    """The medians of both, taken alternately: a busy moment hits both."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(repeats):
        for work, found in ((ours, times[0]), (theirs, times[1])):
            start = time.perf_counter()
            work()
            found.append((time.perf_counter() - start) * 1e3)
    return middle(times[0]), middle(times[1])


# ---- compiled


def compiled() -> list[Row]:
    """What `torch.compile(backend="holdfast")` makes of small programs."""
    rows = []
    for found in importlib.import_module("torch_device.compiled").rows():
        for system, key in COMPILED.items():
            rows.append(Row(found["name"], system, found[key], "µs"))
    return rows


def main() -> None:
    """Measure, print, write."""
    given = options()
    os.environ["HOLDFAST_TORCH_SHIM"] = "off"  # models and compiled programs: the engine computes
    parts = given.parts.split(",")
    rows: list[Row] = []
    if "overhead" in parts:
        rows += overhead(given.tinygrad)
    # Before the models: after them malloc keeps the pages that torch would otherwise ask anew.
    if "compiled" in parts:
        rows += compiled()
    if "models" in parts:
        rows += models([name for name in given.models.split(",") if name], given.repeats)
    import torch

    from holdfast.topology import discover

    more = {"quick": given.quick, "torch": torch.__version__}
    publish("torch device", rows, discover(), given.out, **more)


if __name__ == "__main__":
    main()
