"""Phrases about the parts of a machine, for the tree and the SVG. Unknown facts are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.base.units import format_bytes
from holdfast.topology.model import Cache, Gpu, Link, Measurement, Node, PcieLink, Topology

LINKS = {"nvlink": "NVLink", "xgmi": "xGMI", "c2c": "NVLink-C2C", "pcie": "PCIe"}


def join(parts: Iterable[str | None], separator: str = " · ") -> str:
    return separator.join(part for part in parts if part)


def phrase(*parts: str | None) -> str:
    """The parts that are not empty, with dots between them."""
    return join(parts)


def ranges(numbers: Sequence[int]) -> str:
    """0-3,8 for (0, 1, 2, 3, 8)."""
    groups: list[list[int]] = []
    for number in sorted(numbers):
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in groups)


def count(number: int, noun: str) -> str:
    """ "1 core", "2 cores"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(number: int | None) -> str | None:
    """Formatted bytes; None if unknown."""
    return format_bytes(number) if number is not None else None


def used_fraction(total: int | None, free: int | None) -> float | None:
    """The used fraction of a memory, 0 to 1; None if unknown."""
    return 1 - free / total if total and free is not None else None


def machine(topology: Topology) -> str:
    return phrase(
        "SIMULATED" if topology.simulated else None,
        topology.hostname or "a machine",
        None if topology.simulated else join([topology.system, topology.kernel], " "),
        topology.architecture,
        size(topology.memory_bytes),
    )


def memory_remarks(topology: Topology) -> list[str]:
    """Limits and other facts that make the usable memory smaller than shown."""
    remarks = []
    if topology.memory_limit_bytes is not None and (
        topology.memory_bytes is None or topology.memory_limit_bytes < topology.memory_bytes
    ):
        limit = format_bytes(topology.memory_limit_bytes)
        remarks.append(f"this process may use {limit} (control group)")
    if topology.usable_cpus is not None and len(topology.usable_cpus) < len(topology.cpus):
        remarks.append(f"this process may run on CPUs {ranges(topology.usable_cpus)} only")
    present = sum(node.total_bytes or 0 for node in topology.nodes)
    if topology.memory_bytes and present < 0.9 * topology.memory_bytes:
        remarks.append(
            f"{format_bytes(present)} of {format_bytes(topology.memory_bytes)} has arrived so far: "
            "memory is added on demand"
        )
    return remarks


def node_title(node: Node) -> str:
    """ "node 2 (CXL memory)"."""
    kinds = {"gpu": "GPU memory", "cxl": "CXL memory", "pmem": "persistent memory"}
    kind = kinds.get(node.memory_kind or "", "memory only" if node.memory_only else None)
    return f"node {node.id}" + (f" ({kind})" if kind else "")


def node_facts(node: Node) -> str:
    """Memory, CPUs, huge pages and the firmware's figures of a node."""
    return phrase(
        _memory(node.total_bytes, node.free_bytes) or "memory unknown",
        f"CPUs {ranges(node.cpus)}" if node.cpus else None,
        _hugepages(node),
        _hmat(node),
    )


def _memory(total: int | None, free: int | None) -> str | None:
    """ "12.1 of 16.0 GB free"."""
    if total is None or free is None:
        return size(total)
    return f"{format_bytes(free)} of {format_bytes(total)} free"


def _hugepages(node: Node) -> str | None:
    pools = [
        f"{pool.total} × {format_bytes(pool.page_bytes, binary=True)}"
        for pool in node.hugepages
        if pool.total
    ]
    return "huge pages " + join(pools, ", ") if pools else None


def _hmat(node: Node) -> str | None:
    if node.hmat is None:
        return None
    bandwidth = node.hmat.read_bandwidth_mb_s
    return phrase(
        f"{node.hmat.read_latency_ns} ns" if node.hmat.read_latency_ns else None,
        f"{bandwidth / 1000:g} GB/s" if bandwidth else None,
        "by the firmware",
    )


def caches(found: Sequence[Cache]) -> str:
    """ "L1d 48 KiB × 2 · L2 2 MiB × 2 · L3 260 MiB"."""
    kinds = {"data": "d", "instruction": "i", "unified": ""}
    counted: dict[tuple[int, str, int | None], int] = {}
    for cache in found:
        key = (cache.level, kinds[cache.kind], cache.size_bytes)
        counted[key] = counted.get(key, 0) + 1
    return join(
        f"L{level}{kind} {_cache_size(size) if size else '?'}"
        + (f" × {number}" if number > 1 else "")
        for (level, kind, size), number in sorted(counted.items(), key=lambda item: item[0][:2])
    )


def _cache_size(number: int) -> str:
    """With four digits: 1.25 MiB is a usual size."""
    return f"{number / 2**20:.4g} MiB" if number >= 2**20 else f"{number / 2**10:.4g} KiB"


def pcie(link: PcieLink | None) -> str | None:
    """ "PCIe 32 GT/s × 16, 63 GB/s"."""
    if link is None:
        return None
    speed, width = link.max_speed_gt_s or link.speed_gt_s, link.width or link.max_width
    if speed is None or width is None:
        return None
    return f"PCIe {speed:g} GT/s × {width}, {link.bandwidth_gb_s:.3g} GB/s"


def gpu_title(gpu: Gpu) -> str:
    """The GPU's vendor and name, or its PCI id."""
    known = gpu.name and gpu.vendor and gpu.vendor.lower() not in gpu.name.lower()
    name = f"{gpu.vendor} {gpu.name}" if known else gpu.name or gpu.vendor or "unknown"
    return name if gpu.name or not gpu.pci_id else f"{name} {gpu.pci_id}"


def gpu_memory(gpu: Gpu) -> str | None:
    """ "139 of 150 GB free"."""
    return _memory(gpu.memory_bytes, gpu.free_bytes)


def link(found: Link) -> str:
    """Kind, lanes and nominal speed of a link."""
    return join(
        [
            LINKS.get(found.kind, found.kind),
            f"× {found.lanes}" if found.lanes else None,
            f"through the {found.via.replace('-', ' ')}" if found.via else None,
            f"distance {found.distance}" if found.distance is not None else None,
            f"{found.latency_ns:g} ns" if found.latency_ns else None,
            f"{found.bandwidth_gb_s:.3g} GB/s on paper" if found.bandwidth_gb_s else None,
        ],
        " ",
    )


def measurement(found: Measurement) -> str:
    """ "11.9 GB/s, 98 ns"."""
    return join(
        [
            f"{found.bandwidth_gb_s:.3g} GB/s" if found.bandwidth_gb_s is not None else None,
            f"{found.latency_ns:.3g} ns" if found.latency_ns is not None else None,
        ],
        ", ",
    )


def endpoint(name: str) -> str:
    """ "gpu 0" for "gpu:0"."""
    return name.replace(":", " ")
