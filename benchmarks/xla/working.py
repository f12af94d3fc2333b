"""A part of the benchmark in a process of its own: torch and JAX would fight for one device.

Covers: starting a part with its settings and variables, getting its figures or why it has none.
Promise: a part that fails, crashes or takes too long costs its own figures alone.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Settings:
    """What every part is told. `folder` is where parts leave outputs for each other."""

    device: str  # cuda or cpu
    tiny: bool
    steps: int
    warm: int
    folder: str
    variants: tuple[str, ...] = ()
    kernels: bool = False  # list what the device spends its time on


@dataclass(frozen=True)
class Outcome:
    """Figures of a part, or why there are none."""

    part: str
    took_s: float
    figures: dict[str, Any] | None
    error: str | None = None


def outcome(
    part: str, settings: Settings, limit_s: float, variables: Mapping[str, str] | None = None
) -> Outcome:
    """Run `measure(settings)` of the file `part` in this folder."""
    result = Path(settings.folder) / f"{part}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "xla.working", part, json.dumps(asdict(settings)), str(result)]
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, env=_environment(settings, variables), timeout=limit_s, check=False
        )
        error = None if done.returncode == 0 else f"it ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"it took more than {limit_s:.0f} s"
    figures = json.loads(result.read_text()) if error is None else None
    return Outcome(part, time.monotonic() - start, figures, error)


def _environment(settings: Settings, variables: Mapping[str, str] | None) -> dict[str, str]:
    paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    asked = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        # Parts that use torch as well leave it some of the device.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # torch has one name for devices of others; torchax by itself works only where it is free.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        # Nothing that an earlier run has compiled.
        "HOLDFAST_CACHE_DIR": str(Path(settings.folder) / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(Path(settings.folder) / "jax"),
    }
    if settings.device == "cpu":
        asked["JAX_PLATFORMS"] = "cpu"
    return {**os.environ, **asked, **(variables or {})}


def steps_ms(step: Callable[[], object], settings: Settings) -> list[float]:
    """Times of single steps, after those to warm up. A step ends when its result is there."""
    return in_turns_ms({"": step}, settings)[""]


def in_turns_ms(
    steps: Mapping[str, Callable[[], object]], settings: Settings
) -> dict[str, list[float]]:
    """To and fro: a device that gets warm gets slower, and that must not be one system's fate."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(settings.warm + settings.steps):
        for name in list(steps)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            steps[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: found[settings.warm :] for name, found in times.items()}


def timed(times_ms: list[float], **more: Any) -> dict[str, Any]:
    """Times as they are written down."""
    rounded = [round(one, 4) for one in times_ms]
    return {"median_ms": median(rounded), "times_ms": rounded, **more}


def main() -> None:
    """In the process that was started."""
    part, given, result = sys.argv[1:]
    fields = json.loads(given)
    settings = Settings(**(fields | {"variants": tuple(fields["variants"])}))
    measure: Any = importlib.import_module(f"xla.{part}").measure
    Path(result).write_text(json.dumps(measure(settings)))


if __name__ == "__main__":
    main()
