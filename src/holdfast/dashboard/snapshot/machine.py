"""Current memory of the machine, its NUMA nodes and its GPUs, whoever uses it.

A look takes less than a millisecond: it reads small files and driver counters. Values that cannot
be read are None, or as when the machine was discovered.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Protocol

import psutil

from holdfast.base.config import Config
from holdfast.base.errors import HoldfastError
from holdfast.base.registry import Entry, Registry
from holdfast.dashboard.snapshot.snapshot import GpuUse, Machine, NodeUse
from holdfast.topology import Gpu, Node, Topology, discover
from holdfast.topology.control_groups import memory_left, memory_limit
from holdfast.topology.probes import QUICK
from holdfast.topology.sysfs import read_memory, read_natural


class Cards(Protocol):
    """A driver library that reports memory and load of GPUs."""

    def memory(self, pci_address: str) -> tuple[int, int] | None:
        """(used, total) bytes."""
        ...

    def busy(self, pci_address: str) -> float | None:
        """Fraction of the time in which it computed, from 0 to 1."""
        ...


DRIVERS: Registry[type[Cards]] = Registry(
    "driver", {"nvml": Entry("holdfast.dashboard.snapshot.nvml:Cards", "NVIDIA GPUs", "nvml")}
)


class MachineLooker:
    """Reads this machine, or the one that the settings describe (simulated, recorded).

    The hardware is discovered once, in the constructor; `look` reads its use.
    """

    def __init__(self, config: Config | None = None) -> None:
        self._config = config or Config.load(probes=QUICK)
        self.topology = discover(config=self._config)
        self._host = self.topology.hostname or socket.gethostname()
        self._cards = self._open_cards()
        self._links = {gpu.id: link_gb_s(self.topology, gpu.id) for gpu in self.topology.gpus}
        self._limit_bytes = memory_limit(self._config.root)

    def look(self) -> Machine:
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
            return self._ram_of_topology()
        now = psutil.virtual_memory()
        left = None if self._limit_bytes is None else memory_left()
        total = now.total if self._limit_bytes is None else min(now.total, self._limit_bytes)
        free = now.available if left is None else min(now.available, left)
        return total, max(0, total - free)

    def _ram_of_topology(self) -> tuple[int, int]:
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
                total, used = memory["MemTotal"], _count_used(memory)
        return NodeUse(id=node.id, total_bytes=total, used_bytes=used, cpus=len(node.cpus))

    # ---- GPUs

    def _open_cards(self) -> Cards | None:
        if not self._is_here or not any(gpu.vendor == "NVIDIA" for gpu in self.topology.gpus):
            return None
        try:
            return DRIVERS["nvml"]()
        except HoldfastError:
            return None  # no driver, or its Python package is missing

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
        if self._cards is not None and (memory := self._cards.memory(address)) is not None:
            return *memory, self._cards.busy(address)
        return self._from_files(address, used, total)

    def _from_files(
        self, address: str, used: int | None, total: int | None
    ) -> tuple[int | None, int | None, float | None]:
        """From the sysfs files of amdgpu."""
        folder = self._config.root / "sys/bus/pci/devices" / address
        now = read_natural(folder / "mem_info_vram_used")
        busy = read_natural(folder / "gpu_busy_percent")
        if now is not None:
            used, total = now, read_natural(folder / "mem_info_vram_total") or total
        return used, total, None if busy is None else busy / 100


def _count_used(memory: dict[str, Any]) -> int:
    """Used memory without file caches; shared memory counts as used."""
    files = memory.get("FilePages", 0) - memory.get("Shmem", 0) + memory.get("SReclaimable", 0)
    return max(0, memory["MemTotal"] - memory.get("MemFree", 0) - max(0, files))


def link_gb_s(topology: Topology, gpu: int) -> float | None:
    """The bandwidth from the host to a GPU: measured if known, else nominal."""
    target_name = f"gpu:{gpu}"
    measured = [
        one.bandwidth_gb_s
        for one in topology.measurements
        if one.target == target_name and one.mode == "pinned" and one.bandwidth_gb_s
    ]
    if measured:
        return max(measured)
    nominal = [
        link.bandwidth_gb_s
        for link in topology.links
        if target_name in (link.source, link.target) and link.bandwidth_gb_s
        if "gpu:" not in link.source or "gpu:" not in link.target
    ]
    return max(nominal, default=None)
