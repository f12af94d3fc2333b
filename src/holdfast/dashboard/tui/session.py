"""All processes seen so far: the newest snapshot, who is alive, link use, history.

An ended process stays until `MOST_ENDED` others have ended since. The same pid with another start
time is another process.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.dashboard.ipc import socket_dir
from holdfast.dashboard.snapshot.snapshot import Process, Snapshot
from holdfast.dashboard.tui.history import (
    MachineSample,
    ProcessSample,
    Track,
    machine_sample,
    machine_track,
    process_sample,
    process_track,
)

State = Literal["alive", "silent", "ended"]
MOST_ENDED = 20
WINDOW_S = 1.5  # link use is averaged over this time
Counters = dict[str, int]  # bytes so far, by device


@dataclass(slots=True)
class Watched:
    """A process as last seen."""

    process: Process
    seen_s: float
    state: State = "alive"
    computes: bool = False  # a model ran since the previous snapshot
    track: Track[ProcessSample] = field(default_factory=process_track)
    _sent: deque[tuple[float, Counters]] = field(default_factory=deque)

    @property
    def key(self) -> str:
        """Unique over all processes ever seen."""
        return key(self.process)

    def see(self, at_s: float, process: Process) -> None:
        """Update from a snapshot."""
        before, self.process, self.seen_s, self.state = self.process, process, at_s, "alive"
        self.track.add(process_sample(at_s, process))
        self._sent.append((at_s, {link.device: link.copied_bytes for link in process.links}))
        self.computes = _passes(process) > _passes(before) or any(m.running for m in process.models)
        while len(self._sent) > 2 and at_s - self._sent[1][0] >= WINDOW_S:
            self._sent.popleft()

    def link_gb_s(self, device: str | None = None) -> float | None:
        """Transfer rate of weights to a device, or to all; None before the second snapshot."""
        if len(self._sent) < 2 or self.state != "alive":
            return None
        (began, before), (ended, after) = self._sent[0], self._sent[-1]
        names = [name for name in after if name in before and device in (None, name)]
        if not names or ended <= began:
            return None
        sent = sum(after[name] - before[name] for name in names)
        return max(sent, 0) / (ended - began) / 1e9


def _passes(process: Process) -> int:
    return sum(model.passes for model in process.models)


def key(process: Process) -> str:
    """A key that no later process has, even with the same pid."""
    return f"{process.pid}:{process.began_s:.2f}"


def is_running(pid: int) -> bool:
    """Whether the process still runs."""
    if sys.platform == "linux":
        try:
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        except OSError:
            return False
        return state.split()[0] not in ("Z", "X")
    return socket_dir.exists(pid)


class Session:
    """Everything seen since it was created. Not thread-safe."""

    def __init__(self, running: Callable[[int], bool] = is_running) -> None:
        self.snapshot: Snapshot | None = None
        self.machine: Track[MachineSample] = machine_track(0)
        self.watched: dict[str, Watched] = {}
        self._running = running

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        if self.snapshot is None:
            self.machine = machine_track(len(snapshot.machine.gpus))
        self.snapshot = snapshot
        self.machine.add(machine_sample(snapshot))
        for process in snapshot.processes:
            name = key(process)
            found = self.watched.setdefault(name, Watched(process, snapshot.at_s))
            found.see(snapshot.at_s, process)
        self._mark_missing(snapshot)

    def _mark_missing(self, snapshot: Snapshot) -> None:
        there = {key(process): process.pid for process in snapshot.processes}
        for name, one in self.watched.items():
            if name in there or one.state == "ended":
                continue
            again = one.process.pid in there.values()  # the pid is in use again
            alive = not again and self._running(one.process.pid)
            one.state = "silent" if alive else "ended"
        ended = [name for name, one in self.watched.items() if one.state == "ended"]
        for name in ended[: max(len(ended) - MOST_ENDED, 0)]:
            del self.watched[name]
