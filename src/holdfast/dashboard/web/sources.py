"""Where answers come from: processes, the machine, the history of runs.

Nothing here blocks the event loop. The machine is described once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from holdfast.base.errors import NotFound
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.ipc.watching import Watches
from holdfast.dashboard.web.answers import MachinePicture, PicturePlace, ServerNow
from holdfast.dashboard.web.feed import Feed
from holdfast.dashboard.web.workers import Workers
from holdfast.pipeline.output import history
from holdfast.topology import Topology, svg
from holdfast.topology.render import words

T = TypeVar("T")
THREADS, WAITING = 4, 32
DESCRIBING_S = 120.0  # vendor libraries are probed in subprocesses


class Sources:
    """All data sources of the endpoints."""

    def __init__(
        self, watcher: Watches, machine: Callable[[], Topology], feed: Feed, server: ServerNow
    ) -> None:
        self.feed, self.server = feed, server
        self._watcher, self._machine = watcher, machine
        self._workers = Workers("asking", THREADS, WAITING)
        self._describing = asyncio.Lock()
        self._picture: MachinePicture | None = None

    async def ask(self, pid: int, question: Callable[[Attached], T]) -> T:
        """Send a request to a process. Raises its error, or NotFound."""

        def asked() -> T:
            with self._watcher.attached(pid) as process:
                return question(process)

        return await self._workers.do(asked)

    async def picture(self) -> MachinePicture:
        """The topology of the machine; discovered once."""
        async with self._describing:
            if self._picture is None:
                self._picture = await self._workers.do(
                    lambda: _describe(self._machine()), DESCRIBING_S
                )
            return self._picture

    async def runs(self, most: int) -> tuple[history.RunRecord, ...]:
        """Finished runs, the newest first."""
        return await self._workers.do(lambda: history.runs(most))

    async def run(self, run_id: str) -> history.RunRecord:
        """One of them. Raises NotFound."""
        found = await self._workers.do(lambda: history.runs(MOST_RUNS))
        for one in found:
            if one.id == run_id:
                return one
        raise NotFound(
            f"there is no run {run_id[:80]!r} in the history", expected="an id of /api/v1/runs"
        )

    async def run_picture(self, run_id: str) -> bytes:
        """Its small picture as PNG. Raises NotFound."""
        await self.run(run_id)
        picture = await self._workers.do(lambda: history.picture(run_id))
        if picture is None:
            raise NotFound(f"the run {run_id[:80]!r} has no picture")
        return picture

    def close(self) -> None:
        """Stop idle threads."""
        self._workers.close()


MOST_RUNS = 100_000  # more than any history keeps


def _describe(machine: Topology) -> MachinePicture:
    nodes = [
        PicturePlace(f"node:{node.id}", "node", node.id, words.node_title(node), ("cpu",))
        for node in machine.nodes
    ]
    gpus = [
        PicturePlace(
            f"gpu:{gpu.id}",
            "gpu",
            gpu.id,
            words.gpu_title(gpu),
            tuple(name for name in (gpu.torch, gpu.opencl) if name),
        )
        for gpu in machine.gpus
    ]
    return MachinePicture(svg(machine), machine, (*nodes, *gpus))
