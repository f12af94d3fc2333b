"""Where answers come from: the processes, the machine, the runs that are over.

Covers: asking them in threads, the picture of the machine.
Leaves to others: the questions (table).
Promise: nothing here blocks the event loop; the machine is described once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from holdfast.base.errors import NotFound
from holdfast.dashboard.attaching import Attached
from holdfast.dashboard.snapshot import Snapshot
from holdfast.dashboard.web.answers import MachinePicture, Place, ServerNow
from holdfast.dashboard.web.feed import Feed
from holdfast.dashboard.web.workers import Workers
from holdfast.pipeline import history
from holdfast.topology import Topology, svg
from holdfast.topology.render import words

T = TypeVar("T")
THREADS, WAITING = 4, 32
DESCRIBING_S = 120.0  # vendors' libraries are asked in processes of their own


class Watches(Protocol):
    """What a server needs of a `Watcher`."""

    def look(self) -> Snapshot:
        """This machine and its processes now."""
        ...

    def attached(self, pid: int) -> AbstractContextManager[Attached]:
        """That process, for questions and orders. Raises NotFound."""
        ...


class Sources:
    """Everything that endpoints ask."""

    def __init__(
        self, watcher: Watches, machine: Callable[[], Topology], feed: Feed, server: ServerNow
    ) -> None:
        self.feed, self.server = feed, server
        self._watcher, self._machine = watcher, machine
        self._workers = Workers("asking", THREADS, WAITING)
        self._describing = asyncio.Lock()
        self._picture: MachinePicture | None = None

    async def ask(self, pid: int, question: Callable[[Attached], T]) -> T:
        """What a process answers. Raises what it raises, NotFound where it is not there."""

        def asked() -> T:
            with self._watcher.attached(pid) as process:
                return question(process)

        return await self._workers.do(asked)

    async def picture(self) -> MachinePicture:
        """What the machine is, found out the first time."""
        async with self._describing:
            if self._picture is None:
                self._picture = await self._workers.do(
                    lambda: _described(self._machine()), DESCRIBING_S
                )
            return self._picture

    async def runs(self, most: int) -> tuple[history.RunRecord, ...]:
        """Runs that are over, the newest first."""
        return await self._workers.do(lambda: history.runs(most))

    async def run(self, run_id: str) -> history.RunRecord:
        """One of them. Raises NotFound."""
        found = await self._workers.do(lambda: history.runs(MOST_RUNS))
        for one in found:
            if one.id == run_id:
                return one
        raise _no_run(run_id)

    async def run_picture(self, run_id: str) -> bytes:
        """What it drew, as a small PNG. Raises NotFound."""
        await self.run(run_id)
        picture = await self._workers.do(lambda: history.picture(run_id))
        if picture is None:
            raise NotFound(f"the run {run_id[:80]!r} has no picture")
        return picture

    def close(self) -> None:
        """End the threads that have nothing to do."""
        self._workers.close()


MOST_RUNS = 100_000  # as many as a history may be set to keep, and more


def _no_run(run_id: str) -> NotFound:
    return NotFound(
        f"there is no run {run_id[:80]!r} in the history", expected="an id of /api/v1/runs"
    )


def _described(machine: Topology) -> MachinePicture:
    nodes = [
        Place(f"node:{node.id}", "node", node.id, words.node_title(node), ("cpu",))
        for node in machine.nodes
    ]
    gpus = [
        Place(
            f"gpu:{gpu.id}",
            "gpu",
            gpu.id,
            words.gpu_title(gpu),
            tuple(name for name in (gpu.torch, gpu.opencl) if name),
        )
        for gpu in machine.gpus
    ]
    return MachinePicture(svg(machine), machine, (*nodes, *gpus))
