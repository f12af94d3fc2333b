"""The whole machine now: its memory, that of its nodes and of its GPUs, whoever uses it.

Covers: figures that change, read anew at each look.  Leaves to others: what there is (topology,
asked once), processes (process).
Promise: a look takes less than a millisecond: it reads small files and asks drivers for figures
alone. What cannot be read is None, or as large as when the machine was discovered.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Protocol

import psutil

from holdfast.base.config import Config
from holdfast.base.errors import HoldfastError
from holdfast.base.registry import Entry, Registry
from holdfast.dashboard.snapshot import GpuUse, Machine, NodeUse
from holdfast.topology import Gpu, Node, Topology, discover
from holdfast.topology.control_groups import memory_left, memory_limit
from holdfast.topology.probes import QUICK
from holdfast.topology.sysfs import read_memory, read_natural


class Cards(Protocol):
    """What tells about GPUs again and again."""

    def memory(self, pci_address: str) -> tuple[int, int] | None:
        """(used, total) bytes."""
        ...

    def busy(self, pci_address: str) -> float | None:
        """The part of the time in which it computed."""
        ...


DRIVERS: Registry[type[Cards]] = Registry(
    "driver", {"nvml": Entry("holdfast.dashboard.nvml:Cards", "NVIDIA GPUs", "nvml")}
)


class MachineLooker:
    """Looks at this machine, or at the one that the settings describe (simulated, recorded).

    What there is was found when this was made; `look` reads how much of it is used.
    """

    def __init__(self, config: Config | None = None) -> None:
        self._config = config or Config.load(probes=QUICK)
        self.topology = discover(config=self._config)
        self._host = self.topology.hostname or socket.gethostname()
        self._cards = self._open_cards()
        self._links = {gpu.id: link_gb_s(self.topology, gpu.id) for gpu in self.topology.gpus}
        self._limit_bytes = memory_limit(self._config.root)

    def look(self) -> Machine:
        """The machine now."""
        total, used = self._ram()
        return Machine(
            host=self._host,
            ram_total_bytes=total,
            ram_used_bytes=used,
            nodes=tuple(map(self._node, self.topology.nodes)),
            gpus=tuple(map(self._gpu, self.topology.gpus)),
        )

    @property
    def _is_here(self) -> bool:
        return self._config.simulate is None and self._config.root == Path("/")

    # ---- memory of the host

    def _ram(self) -> tuple[int, int]:
        if not self._is_here:
            return self._ram_on_paper()
        now = psutil.virtual_memory()
        left = None if self._limit_bytes is None else memory_left()
        total = now.total if self._limit_bytes is None else min(now.total, self._limit_bytes)
        free = now.available if left is None else min(now.available, left)
        return total, max(0, total - free)

    def _ram_on_paper(self) -> tuple[int, int]:
        nodes = self.topology.nodes
        total = self.topology.memory_bytes or sum(node.total_bytes or 0 for node in nodes)
        free = self.topology.available_bytes
        if free is None:
            free = sum(node.free_bytes or 0 for node in nodes)
        return total, max(0, total - free)

    def _node(self, node: Node) -> NodeUse:
        total, used = node.total_bytes or 0, (node.total_bytes or 0) - (node.free_bytes or 0)
        if self._config.simulate is None:
            folder = self._config.root / f"sys/devices/system/node/node{node.id}"
            memory = read_memory(folder / "meminfo")
            if "MemTotal" in memory:
                total, used = memory["MemTotal"], _used(memory)
        return NodeUse(id=node.id, total_bytes=total, used_bytes=used, cpus=len(node.cpus))

    # ---- GPUs

    def _open_cards(self) -> Cards | None:
        if not self._is_here or not any(gpu.vendor == "NVIDIA" for gpu in self.topology.gpus):
            return None
        try:
            return DRIVERS["nvml"]()
        except HoldfastError:
            return None  # no driver, or not the package for it

    def _gpu(self, gpu: Gpu) -> GpuUse:
        used, total, busy = self._figures(gpu)
        return GpuUse(
            id=gpu.id,
            label=gpu.name or gpu.vendor or "GPU",
            total_bytes=total,
            used_bytes=used,
            busy=busy,
            link_gb_s=self._links[gpu.id],
        )

    def _figures(self, gpu: Gpu) -> tuple[int | None, int | None, float | None]:
        """(used bytes, total bytes, busy)."""
        total, free, address = gpu.memory_bytes, gpu.free_bytes, gpu.pci_address
        used = None if total is None or free is None else total - free
        if address is None or self._config.simulate is not None:
            return used, total, None
        if self._cards is not None and (told := self._cards.memory(address)) is not None:
            return told[0], told[1], self._cards.busy(address)
        return self._from_files(address, used, total)

    def _from_files(
        self, address: str, used: int | None, total: int | None
    ) -> tuple[int | None, int | None, float | None]:
        """As amdgpu tells it."""
        folder = self._config.root / "sys/bus/pci/devices" / address
        now = read_natural(folder / "mem_info_vram_used")
        busy = read_natural(folder / "gpu_busy_percent")
        used, total = (used, total) if now is None else (now, _or(folder, total))
        return used, total, None if busy is None else busy / 100


def _or(folder: Path, total: int | None) -> int | None:
    return read_natural(folder / "mem_info_vram_total") or total


def _used(memory: dict[str, Any]) -> int:
    """Not free, caches of files left out; what several programs share is in no file."""
    files = memory.get("FilePages", 0) - memory.get("Shmem", 0) + memory.get("SReclaimable", 0)
    return max(0, memory["MemTotal"] - memory.get("MemFree", 0) - max(0, files))


def link_gb_s(topology: Topology, gpu: int) -> float | None:
    """The bandwidth from the host to a GPU: measured where it was, else on paper."""
    place = f"gpu:{gpu}"
    measured = [
        one.bandwidth_gb_s
        for one in topology.measurements
        if one.target == place and one.mode == "pinned" and one.bandwidth_gb_s
    ]
    if measured:
        return max(measured)
    on_paper = [
        link.bandwidth_gb_s
        for link in topology.links
        if place in (link.source, link.target) and link.bandwidth_gb_s
        if "gpu:" not in link.source or "gpu:" not in link.target
    ]
    return max(on_paper, default=None)
