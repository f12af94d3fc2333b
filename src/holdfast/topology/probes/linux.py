"""NUMA nodes, CPUs, caches and memory limits from Linux's sysfs and procfs below `config.root`."""

from __future__ import annotations

import dataclasses
import itertools
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import Absent
from holdfast.topology.control_groups import memory_limit
from holdfast.topology.model import (
    Cache,
    CacheKind,
    CoreKind,
    Cpu,
    HugePages,
    MemoryKind,
    Node,
    Performance,
    Topology,
)
from holdfast.topology.probes import hash_id
from holdfast.topology.sysfs import (
    children,
    read,
    read_int,
    read_list,
    read_memory,
    read_natural,
    read_size,
    read_table,
)


def probe(config: Config) -> Topology:
    """Nodes, CPUs and caches; raises Absent where there is no sysfs to read."""
    root = config.root
    system = root / "sys/devices/system"
    if not (system / "cpu").is_dir():
        raise Absent(
            f"there is no {system / 'cpu'}",
            expected="the sysfs of a Linux machine below " + str(root),
        )
    node_of_cpu = {
        cpu: node
        for node, path in children(system / "node", r"node(\d+)")
        for cpu in read_list(path / "cpulist") or ()
    }
    cpus = _cpus(root, node_of_cpu)
    memory = read_memory(root / "proc/meminfo")
    nodes = _nodes(root)
    if not nodes:  # a kernel without NUMA
        every = tuple(cpu.id for cpu in cpus)
        nodes = (Node(id=0, **_sizes(memory), cpus=every, distances=(10,), memory_kind="dram"),)
    here = root == Path("/")
    identity = read(root / "etc/machine-id") or read(root / "var/lib/dbus/machine-id")
    return Topology(
        machine_id=hash_id(identity) if identity else None,
        hostname=read(root / "proc/sys/kernel/hostname"),
        system="Linux",
        kernel=read(root / "proc/sys/kernel/osrelease"),
        architecture=platform.machine() if here else None,
        cpu_model=_cpu_model(root),
        page_bytes=os.sysconf("SC_PAGE_SIZE") if here else None,
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=memory_limit(root),
        usable_cpus=tuple(sorted(os.sched_getaffinity(0))) if here else None,
        nodes=nodes,
        cpus=cpus or tuple(Cpu(id=i, node=n) for i, n in sorted(node_of_cpu.items())),
        caches=_caches(system / "cpu", [cpu.id for cpu in cpus]),
    )


def _nodes(root: Path) -> tuple[Node, ...]:
    folder = root / "sys/devices/system/node"
    kinds = _memory_kinds(root)
    online = read_list(folder / "online")
    found = [(i, p) for i, p in children(folder, r"node(\d+)") if online is None or i in online]
    nodes = [_node(i, path, kinds.get(i)) for i, path in found]
    # The firmware may reserve nodes without memory and CPUs: drop them and the distances to them.
    keep = [not (n.total_bytes == 0 and not n.cpus) for n in nodes]
    return tuple(
        dataclasses.replace(
            node,
            distances=tuple(itertools.compress(node.distances, keep))
            if len(node.distances) == len(keep)
            else (),
        )
        for node in itertools.compress(nodes, keep)
    )


def _node(node_id: int, path: Path, kind: MemoryKind | None) -> Node:
    memory = read_memory(path / "meminfo")
    cpus = read_list(path / "cpulist") or ()
    distances = tuple(int(d) for d in re.findall(r"\d+", read(path / "distance") or ""))
    return Node(
        id=node_id,
        **_sizes(memory),
        cpus=cpus,
        distances=distances,
        memory_kind=kind or ("dram" if cpus else None),
        hugepages=_hugepages(path / "hugepages"),
        hmat=_hmat(path),
    )


def _hugepages(folder: Path) -> tuple[HugePages, ...]:
    pools = (
        (size, read_natural(path / "nr_hugepages"), read_natural(path / "free_hugepages"))
        for size, path in children(folder, r"hugepages-(\d+)kB")
    )
    return tuple(
        HugePages(page_bytes=size * 1024, total=total, free=free)
        for size, total, free in pools
        if total is not None
    )


def _hmat(node: Path) -> Performance | None:
    """HMAT figures: access class 1 is the best CPU, class 0 the best initiator of any kind."""
    for access in ("access1", "access0"):
        folder = node / access / "initiators"
        # The kernel writes 0 for a missing figure.
        figures: dict[str, Any] = {
            f"{way}_{name}_{unit}": read_int(folder / f"{way}_{name}") or None
            for name, unit in (("latency", "ns"), ("bandwidth", "mb_s"))
            for way in ("read", "write")
        }
        if any(figures.values()):
            initiators = tuple(i for i, _ in children(folder, r"node(\d+)"))
            return Performance(initiators=initiators, **figures)
    return None


def _memory_kinds(root: Path) -> dict[int, MemoryKind]:
    """Nodes whose memory the kernel reports as something other than DRAM."""
    kinds: dict[int, MemoryKind] = {}
    has_cxl = any((root / "sys/bus/cxl/devices").glob("mem*"))
    for device in _entries(root / "sys/bus/dax/devices"):
        node, path = read_natural(device / "target_node"), str(device.resolve())
        if node is None:
            continue
        if "ndbus" in path:  # libnvdimm's bus
            kinds[node] = "pmem"
        elif "ACPI0017" in path or has_cxl:  # the CXL root, or memory reserved by the firmware
            kinds[node] = "cxl"
    for gpu in _entries(root / "proc/driver/nvidia/gpus"):
        node = gpu_memory_node(gpu)
        if node is not None:
            kinds[node] = "gpu"
    return kinds


def gpu_memory_node(folder: Path) -> int | None:
    """The node of a GPU's memory, from the NVIDIA driver's folder of the card."""
    node = read_table(folder / "numa_status").get("Node", "")
    return int(node) if node.isdecimal() else None


def _entries(folder: Path) -> Iterable[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else ()


def _sizes(memory: dict[str, int]) -> dict[str, Any]:
    return {"total_bytes": memory.get("MemTotal"), "free_bytes": memory.get("MemFree")}


def _cpus(root: Path, node_of_cpu: dict[int, int]) -> tuple[Cpu, ...]:
    folder = root / "sys/devices/system/cpu"
    numbers = [i for i, _ in children(folder, r"cpu(\d+)")]
    online = read_list(folder / "online")
    kinds: dict[int, CoreKind] = {
        cpu: kind
        for name, kind in _CORE_KINDS.items()
        for cpu in read_list(root / "sys/devices" / name / "cpus") or ()
    }

    def cpu(number: int) -> Cpu:
        topology = folder / f"cpu{number}/topology"
        return Cpu(
            id=number,
            core=read_natural(topology / "core_id"),
            die=read_natural(topology / "die_id"),
            package=read_natural(topology / "physical_package_id"),
            node=node_of_cpu.get(number) if node_of_cpu else 0,
            kind=kinds.get(number),
        )

    return tuple(cpu(i) for i in numbers if online is None or i in online)


def _caches(folder: Path, cpus: list[int]) -> tuple[Cache, ...]:
    """Each cache once, described by the first CPU that has it."""
    seen: set[tuple[int | None, str | None, tuple[int, ...]]] = set()
    caches: list[Cache] = []
    for cpu in cpus:
        for _, path in children(folder / f"cpu{cpu}/cache", r"index(\d+)"):
            level, kind = read_natural(path / "level"), read(path / "type")
            shared = read_list(path / "shared_cpu_list") or (cpu,)
            if level is None or (level, kind, shared) in seen:
                continue
            seen.add((level, kind, shared))
            caches.append(
                Cache(
                    level=level,
                    kind=_CACHE_KINDS.get(kind or "", "unified"),
                    size_bytes=read_size(path / "size"),
                    line_bytes=read_natural(path / "coherency_line_size"),
                    cpus=shared,
                )
            )
    return tuple(sorted(caches, key=lambda c: (c.level, c.cpus, c.kind)))


_CORE_KINDS: dict[str, CoreKind] = {"cpu_core": "performance", "cpu_atom": "efficiency"}
_CACHE_KINDS: dict[str, CacheKind] = {"Data": "data", "Instruction": "instruction"}


def _cpu_model(root: Path) -> str | None:
    """The CPU's name in cpuinfo (x86), else the board's in the device tree or DMI (ARM)."""
    cpuinfo = read_table(root / "proc/cpuinfo")
    dmi = read(root / "sys/devices/virtual/dmi/id/product_name")
    board = read(root / "proc/device-tree/model")
    return cpuinfo.get("model name") or cpuinfo.get("Model") or board or dmi or None
