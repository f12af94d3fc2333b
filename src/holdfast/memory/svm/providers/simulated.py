"""The `simulated` provider: a made-up machine with any NUMA nodes.

The memory is real host memory; the node of each page is only recorded. Results have `simulated`
set, and no bandwidth.
"""

from __future__ import annotations

from collections import Counter

from holdfast.base.config import Config
from holdfast.memory.svm.interface import Provider
from holdfast.memory.svm.model import (
    PAGE_BYTES,
    Chunk,
    Layout,
    Placement,
    Where,
    node_domain,
)
from holdfast.memory.svm.providers.host_pages import PagesBacking
from holdfast.topology.probes.simulated import EXAMPLE, simulate

METHOD = "recorded by the simulation"


class SimulatedProvider(Provider):
    """Made-up nodes, from the setting `simulate` or an example."""

    name = "simulated"
    simulated = True

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        text = self.config.simulate
        self.machine = simulate(EXAMPLE if text is None else text)

    def discover(self, refresh: bool = False) -> Layout:
        """The made-up nodes, less what was allocated on them."""
        used: Counter[int] = Counter()
        for record in self.ledger.live():
            used.update(record.backing.where().pages)
        return Layout(
            provider=self.name,
            simulated=True,
            topology=self.machine,
            remarks=("this machine is simulated: the nodes of pages are only recorded",),
            domains=tuple(
                node_domain(n, free_bytes=max(0, (n.total_bytes or 0) - used[n.id] * PAGE_BYTES))
                for n in self.machine.nodes
            ),
        )

    def running_on(self) -> tuple[int, ...]:
        """None: the work runs on CPUs outside of this machine."""
        return ()

    def _obtain(self, size: int, placement: Placement) -> SimulatedBacking:
        rooms = {d.id: (d.free_bytes or 0) // PAGE_BYTES for d in self.discover().domains}
        return SimulatedBacking(size, placement, rooms)


class SimulatedBacking(PagesBacking):
    """Pages of the host, and a recorded node for each."""

    def __init__(self, size: int, placement: Placement, rooms: dict[int, int]) -> None:
        super().__init__(size)
        self._nodes = _assign(self.pages.count, placement, rooms)

    def where(self) -> Where:
        pages = {node: self._nodes.count(node) for node in sorted(set(self._nodes))}
        return Where(pages=pages, method=METHOD, simulated=True)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        first, last = offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES)
        part = self._nodes[first:last]
        count = part.count(source)
        self._nodes[first:last] = part.replace(bytes([source]), bytes([target]))
        return Chunk(moved=count, elsewhere=len(part) - count)


def _assign(count: int, placement: Placement, rooms: dict[int, int]) -> bytearray:
    """A node for each page as the kernel would choose it (one byte: at most 256 nodes)."""
    nodes = bytes(placement.domains)
    if placement.mode == "interleave":
        return bytearray((nodes * -(-count // len(nodes)))[:count])
    order = [*nodes, *(n for n in rooms if n not in nodes)] if placement.mode != "bind" else nodes
    assigned = bytearray()
    for node in order:
        assigned += bytes([node]) * min(rooms[node], count - len(assigned))
    return assigned + bytes([order[-1]]) * (count - len(assigned))
