"""Snapshots of a machine that is not there, and a watcher that shows them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.dashboard.snapshot.snapshot import (
    DeviceUse,
    GpuUse,
    LeakState,
    LinkUse,
    Machine,
    ModelUse,
    NodeUse,
    PoolUse,
    Process,
    RunNow,
    Snapshot,
    TagUse,
)

GB = 10**9


def machine(*, nodes: int = 2, gpus: int = 1, ram_used: int = 12 * GB) -> Machine:
    return Machine(
        host="workshop",
        ram_total_bytes=64 * GB,
        ram_used_bytes=ram_used,
        nodes=tuple(NodeUse(n, 32 * GB, (6 + n) * GB, 16) for n in range(nodes)),
        gpus=tuple(GpuUse(n, "Card 9000", 24 * GB, 18 * GB, 0.87, 25.2) for n in range(gpus)),
    )


def run(done: int = 5, total: int | None = 20) -> RunNow:
    return RunNow("r1", "flux-dev", "a red fox", "denoise", done, total, None, 990.0, 4.0, 12.4)


def node() -> RunNow:
    """Of ComfyUI."""
    return RunNow("p1", "sd15", "a red fox", "node", 5, 20, "KSampler", 990.0, 4.0, 12.4)


def model(**changed: Any) -> ModelUse:
    facts: dict[str, Any] = {
        "id": "managed-1",
        "name": "transformer",
        "device": "cuda:0",
        "keeper": "residency",
        "weight_bytes": 23 * GB,
        "resident_bytes": 6 * GB,
        "streamed_bytes": 17 * GB,
        "link_bytes": 12 * GB,
        "budget_bytes": 6 * GB,
        "smallest_bytes": 2 * GB,
        "adjustable": True,
        "group": None,
        "passes": 7,
        "running": True,
        "predicted_ms": 812.5,
    }
    return ModelUse(**(facts | changed))


def process(pid: int = 4711, **changed: Any) -> Process:
    facts: dict[str, Any] = {
        "pid": pid,
        "name": "run flux-dev",
        "holdfast": "0.1.0",
        "began_s": 900.0,
        "rss_bytes": 3 * GB,
        "pinned_bytes": GB,
        "devices": (DeviceUse("cuda:0", 24 * GB, 18 * GB, 6 * GB, 7 * GB),),
        "pools": (PoolUse("scratch", "cpu", 2 * GB, 4 * GB, 2 * GB, 3 * GB, 12, 200, 150),),
        "tags": (TagUse("latents", GB, 2 * GB),),
        "models": (model(),),
        "links": (LinkUse("cuda:0", 100 * GB, 25.2),),
        "run": run(),
        "leaks": LeakState(False, None, None, None),
        "look_us": 88.0,
    }
    return Process(**(facts | changed))


def snapshot(at_s: float = 1000.0, *processes: Process, of: Machine | None = None) -> Snapshot:
    return Snapshot(1, at_s, of or machine(), processes)


class MadeUpWatcher:
    """Shows what `now` is; what is asked of a process is written down and answered from a table."""

    def __init__(self, now: Snapshot) -> None:
        self.now = now
        self.asked: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.gate = threading.Event()  # looks wait while it is closed
        self.gate.set()

    def look(self) -> Snapshot:
        self.gate.wait(20)
        return self.now

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[Any]:
        yield _There(self, pid)


class _There:
    def __init__(self, watcher: MadeUpWatcher, pid: int) -> None:
        self._watcher, self._pid = watcher, pid

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any, **options: Any) -> Any:
            self._watcher.asked.append((self._pid, name, *arguments, options))
            answer = self._watcher.answers[name]
            if isinstance(answer, HoldfastError):
                raise answer
            return answer

        return ask
