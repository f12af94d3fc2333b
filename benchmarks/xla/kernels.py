"""Where the time of a step goes on the device, kernel by kernel, as torch and JAX tell it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 3
MOST = 40


def of_torch(step: Callable[[], object]) -> list[dict[str, Any]]:
    """By torch's profiler."""
    from torch import profiler

    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            step()
    return _listed(
        [(one.key, one.count, one.self_device_time_total) for one in seen.key_averages()]
    )


def of_jax(step: Callable[[], object]) -> list[dict[str, Any]]:
    """By JAX's profiler: events on the streams of the first card."""
    import jax

    sums: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                step()
        for file in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                if not plane.name.startswith("/device:GPU"):
                    continue
                for line in plane.lines:
                    for event in line.events if line.name.startswith("Stream") else ():
                        count, total = sums.get(event.name, (0, 0.0))
                        sums[event.name] = (count + 1, total + event.duration_ns / 1e3)
    return _listed([(name, count, total) for name, (count, total) in sums.items()])


def _listed(found: list[tuple[str, int, float]]) -> list[dict[str, Any]]:
    """Those that take most, in microseconds of one step."""
    ordered = sorted(found, key=lambda one: -one[2])[:MOST]
    return [
        {"kernel": name[:120], "count": count / STEPS, "us": total_us / STEPS}
        for name, count, total_us in ordered
    ]
